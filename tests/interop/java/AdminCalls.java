import java.lang.reflect.Method;
import java.util.Arrays;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Calls one method of the administration that mqadmin has no command for; not every release has each of them. */
public class AdminCalls {
  public static void main(String[] args) throws Exception {
    DefaultMQAdminExt admin = new DefaultMQAdminExt();
    admin.setNamesrvAddr(args[0]);
    admin.start();
    String[] words = Arrays.copyOfRange(args, 2, args.length);
    for (Method method : DefaultMQAdminExt.class.getMethods())
      if (method.getName().equals(args[1]) && method.getParameterCount() == words.length)
        System.out.println("RESULT " + method.invoke(admin, values(method, words)));
    System.exit(0);
  }

  static Object[] values(Method method, String[] words) {
    Object[] values = new Object[words.length];
    for (int n = 0; n < words.length; n++)
      values[n] = method.getParameterTypes()[n] == Boolean.class ? Boolean.valueOf(words[n]) : words[n];
    return values;
  }
}
