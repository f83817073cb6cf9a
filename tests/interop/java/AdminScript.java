import java.nio.file.*;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** Runs commands of mqadmin, one a line of a file, in one virtual machine. */
public class AdminScript {
  public static void main(String[] args) throws Exception {
    for (String line : Files.readAllLines(Path.of(args[0]))) {
      System.out.println("COMMAND " + line);
      System.err.println("COMMAND " + line);
      MQAdminStartup.main0(line.split(" "), null);
    }
    System.exit(0);
  }
}
