package headrace;

import io.delta.storage.S3SingleDriverLogStore;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Delta's commits in S3, each version written by one of any number of drivers.
 *
 * Delta's own store for S3 looks whether a version is there and then writes it: of two drivers at the same moment the later
 * one overwrites the other's rows. This one says `If-None-Match: *`, which S3 answers with 412 where there is an object.
 * An answer that was lost may make a commit of our own look like somebody else's; whoever commits looks again
 * (`headrace_spark.lake.delta_commit`).
 *
 * Compiled by Spark's own compiler when a session starts (`headrace_spark.base.object_store`): no lambdas, no generics.
 */
public class ConditionalPutLogStore extends S3SingleDriverLogStore {
    public ConditionalPutLogStore(Configuration configuration) {
        super(configuration);
    }

    public void write(Path path, Iterator actions, Boolean overwrite, Configuration configuration) throws IOException {
        if (overwrite.booleanValue()) {
            super.write(path, actions, overwrite, configuration);
            return;
        }
        FileSystem files = path.getFileSystem(configuration);
        if (files.exists(path)) {
            throw new FileAlreadyExistsException(path.toString());
        }
        FSDataOutputStream out = create(files, path);
        while (actions.hasNext()) {
            out.write(((String) actions.next() + "\n").getBytes(StandardCharsets.UTF_8));
        }
        try {
            out.close();
        } catch (IOException problem) {
            if (String.valueOf(problem.getMessage()).contains("Status Code: 412")) {
                throw new FileAlreadyExistsException(path.toString());
            }
            throw problem;
        }
    }

    /** The object is written when the stream is closed, unless there is one by then. */
    public static FSDataOutputStream create(FileSystem files, Path path) throws IOException {
        FSDataOutputStreamBuilder builder = files.createFile(path).overwrite(false);
        builder.must("fs.option.create.conditional.overwrite", true);
        return (FSDataOutputStream) builder.build();
    }
}
