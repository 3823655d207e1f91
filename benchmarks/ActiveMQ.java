// A broker of ActiveMQ Classic for the benchmark: STOMP over NIO, KahaDB that syncs before it answers (its default).
// run: java -cp 'JARS/*' ActiveMQ.java PORT FOLDER
import java.io.File;
import org.apache.activemq.broker.BrokerService;
import org.apache.activemq.store.kahadb.KahaDBPersistenceAdapter;

public class ActiveMQ {
    public static void main(String[] arguments) throws Exception {
        KahaDBPersistenceAdapter store = new KahaDBPersistenceAdapter();
        store.setDirectory(new File(arguments[1]));
        BrokerService broker = new BrokerService();
        broker.setPersistenceAdapter(store);
        broker.setUseJmx(false);
        broker.setAdvisorySupport(false);
        broker.getSystemUsage().getStoreUsage().setLimit(4L << 30);
        broker.addConnector("stomp+nio://127.0.0.1:" + arguments[0] + "?maximumConnections=20000&backlog=8192");
        broker.start();
        broker.waitUntilStarted();
        System.err.println("ready");
        broker.waitUntilStopped();
    }
}
