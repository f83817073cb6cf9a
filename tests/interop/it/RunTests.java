import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.Request;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/** RunTests CLASS|CLASS#TEST...: run the JUnit tests of classes; a line PASSED, FAILED or IGNORED for each. */
public class RunTests {
    public static void main(String[] args) throws Exception {
        JUnitCore core = new JUnitCore();
        core.addListener(new RunListener() {
            private boolean failed;

            @Override
            public void testStarted(Description test) {
                failed = false;
            }

            @Override
            public void testFailure(Failure failure) {
                failed = true;
                String said = String.valueOf(failure.getException()).replaceAll("\\s+", " ");
                say("FAILED", failure.getDescription(), said);
                failure.getException().printStackTrace();
            }

            @Override
            public void testIgnored(Description test) {
                say("IGNORED", test, "");
            }

            @Override
            public void testFinished(Description test) {
                if (!failed) {
                    say("PASSED", test, "");
                }
            }

            private void say(String what, Description test, String said) {
                System.out.println("\nRESULT\t" + what + "\t" + test.getMethodName() + "\t" + said);
            }
        });
        for (String name : args) {
            String[] parts = name.split("#");
            Class<?> tests = Class.forName(parts[0]);
            core.run(parts.length > 1 ? Request.method(tests, parts[1]) : Request.aClass(tests));
        }
        System.out.flush();
        // clients of the tests leave threads
        Runtime.getRuntime().halt(0);
    }
}
