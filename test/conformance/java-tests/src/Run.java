import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.Request;
import org.junit.runner.manipulation.Filter;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Set;
import java.util.stream.Collectors;

/** Run except|only LIST CLASS...: runs tests but those, or those alone, that a file names; a line for each: PASS, FAIL or SKIP, and its name. */
public class Run extends RunListener {
    private static final String HOME = "com.rabbitmq.client.test.";
    private boolean passed;

    public static void main(String[] arguments) throws Exception {
        boolean only = arguments[0].equals("only");
        Set<String> listed = Files.readAllLines(Path.of(arguments[1])).stream()
            .map(line -> line.replaceAll(" *#.*", ""))
            .collect(Collectors.toSet());
        Filter wanted = new Filter() {
            @Override
            public boolean shouldRun(Description test) {
                return test.isSuite() || listed.contains(name(test)) == only;
            }

            @Override
            public String describe() {
                return arguments[0] + " those listed";
            }
        };
        JUnitCore core = new JUnitCore();
        core.addListener(new Run());
        for (int i = 2; i < arguments.length; i++) {
            core.run(Request.aClass(Class.forName(HOME + arguments[i])).filterWith(wanted));
        }
        System.exit(0);
    }

    private static String name(Description test) {
        return test.getTestClass().getSimpleName() + "." + test.getMethodName();
    }

    @Override
    public void testStarted(Description test) {
        passed = true;
    }

    @Override
    public void testFailure(Failure failure) {
        passed = false;
        System.out.println("FAIL " + name(failure.getDescription()));
        System.out.println(failure.getTrace());
    }

    @Override
    public void testAssumptionFailure(Failure failure) {
        passed = false;
        System.out.println("SKIP " + name(failure.getDescription()));
    }

    @Override
    public void testFinished(Description test) {
        if (passed) {
            System.out.println("PASS " + name(test));
        }
    }
}
