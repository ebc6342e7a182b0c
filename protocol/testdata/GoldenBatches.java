// Writes the cases of kafka_batches.txt: batches as Apache Kafka builds them, batches damaged in
// one way each, and what Kafka's own validation says to them.
//
//   java -cp 'LIBS/*' protocol/testdata/GoldenBatches.java > protocol/testdata/kafka_batches.txt
//
// with the jars of org.apache.kafka:kafka_2.13:4.4.0 in LIBS. A line is, separated by blanks:
// name, Produce version, "compacted" or "plain", "create" or "append" (the topic's timestamp
// type), the batch in hex, and Kafka's answer: an error's name (and the indexes of
// the records at fault, if it names them), or "ok", the largest timestamp,
// and the batch as it would be appended at offset 1000 in leader epoch 7. The clock stands at
// 1700000000000; timestamps may be an hour behind and a minute ahead of it.

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.function.Consumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.*;
import org.apache.kafka.common.requests.ProduceRequest;
import org.apache.kafka.common.utils.*;
import org.apache.kafka.common.utils.internals.*;
import org.apache.kafka.server.common.RequestLocal;
import org.apache.kafka.storage.internals.log.*;

public class GoldenBatches {
    static final long NOW = 1700000000000L;

    static byte[] bytes(String text) {
        return text == null ? null : text.getBytes(StandardCharsets.UTF_8);
    }

    static SimpleRecord record(long timestamp, String key, String value, String... headers) {
        Header[] list = new Header[headers.length / 2];
        for (int i = 0; i < list.length; i++)
            list[i] = new RecordHeader(headers[2 * i], bytes(headers[2 * i + 1]));
        return new SimpleRecord(timestamp, bytes(key), bytes(value), list);
    }

    static SimpleRecord[] records() {
        return new SimpleRecord[] {
            record(NOW, "key", "value"),
            record(NOW + 20, null, "x".repeat(300), "h", "1", "h", "2", "null", null),
            record(NOW - 5, "tombstone", null),
            record(NOW + 20, "", ""),
        };
    }

    static byte[] hexless(MemoryRecords records) {
        ByteBuffer buffer = records.buffer().duplicate();
        byte[] all = new byte[buffer.remaining()];
        buffer.get(all);
        return all;
    }

    static byte[] batch(Compression compression, SimpleRecord... records) {
        return hexless(MemoryRecords.withRecords(compression, records));
    }

    static byte[] damaged(byte[] batch, boolean fixCrc, Consumer<ByteBuffer> damage) {
        ByteBuffer copy = ByteBuffer.wrap(batch.clone());
        damage.accept(copy);
        if (fixCrc)
            copy.putInt(17, (int) Crc32C.compute(copy.array(), 21, copy.capacity() - 21));
        return copy.array();
    }

    static byte[] resized(byte[] batch, int size) {
        return damaged(Arrays.copyOf(batch, size), true, b -> b.putInt(8, size - 12));
    }

    static byte[] joined(byte[] a, byte[] b) {
        byte[] all = Arrays.copyOf(a, a.length + b.length);
        System.arraycopy(b, 0, all, a.length, b.length);
        return all;
    }

    static String answer(byte[] bytes, short version, boolean compacted, TimestampType type) {
        try {
            MemoryRecords records = MemoryRecords.readableRecords(ByteBuffer.wrap(bytes.clone()));
            ProduceRequest.validateRecords(version, records);
            CompressionType source = null;
            for (MutableRecordBatch batch : records.batches()) {
                if (batch.baseOffset() != 0)
                    return Errors.INVALID_RECORD.name();
                batch.ensureValid();
                source = batch.compressionType();
            }
            LogValidator validator = new LogValidator(records, new TopicPartition("t", 0), stoppedClock(), source,
                Compression.of(source).build(), compacted, RecordBatch.MAGIC_VALUE_V2, type,
                3_600_000L, 60_000L, 7, AppendOrigin.CLIENT);
            LogValidator.ValidationResult result = validator.validateMessagesAndAssignOffsets(
                PrimitiveRef.ofLong(1000), new Recorder(), RequestLocal.withThreadConfinedCaching().bufferSupplier());
            return "ok " + result.maxTimestampMs() + " " + HexFormat.of().formatHex(hexless(result.validatedRecords()));
        } catch (RecordValidationException e) {
            return Errors.forException(e.invalidException()).name() + " " + e.recordErrors().stream()
                .map(error -> "" + error.batchIndex).collect(java.util.stream.Collectors.joining(","));
        } catch (Throwable e) {
            return Errors.forException(e).name();
        }
    }

    static void line(String name, int version, boolean compacted, TimestampType type, byte[] bytes) {
        System.out.println(name + " " + version + " " + (compacted ? "compacted" : "plain") + " "
            + (type == TimestampType.CREATE_TIME ? "create" : "append") + " "
            + HexFormat.of().formatHex(bytes) + " " + answer(bytes, (short) version, compacted, type));
    }

    static void line(String name, byte[] bytes) {
        line(name, 12, false, TimestampType.CREATE_TIME, bytes);
    }

    public static void main(String[] args) {
        TimestampType create = TimestampType.CREATE_TIME, append = TimestampType.LOG_APPEND_TIME;
        Compression none = Compression.NONE;
        byte[] plain = batch(none, records());
        byte[] single = batch(none, record(NOW, "k", "v"));

        for (CompressionType type : CompressionType.values()) {
            byte[] batch = batch(Compression.of(type).build(), records());
            line("good-" + type.name, batch);
            line("good-v3-" + type.name, 3, false, create, batch);
            line("append-time-" + type.name, 12, false, append, batch);
            line("null-key-compacted-" + type.name, 12, true, create, batch);
            line("wrong-max-timestamp-" + type.name, damaged(batch, true, b -> b.putLong(35, NOW + 999_999)));
            line("last-offset-delta-" + type.name, damaged(batch, true, b -> b.putInt(23, 4)));
            line("count-high-" + type.name, damaged(batch, true, b -> { b.putInt(57, 5); b.putInt(23, 4); }));
            line("count-low-" + type.name, damaged(batch, true, b -> { b.putInt(57, 3); b.putInt(23, 2); }));
            line("wrong-crc-" + type.name, damaged(batch, false, b -> b.put(60, (byte) 1)));
            line("truncated-records-" + type.name, resized(batch, batch.length - 5));
        }
        line("idempotent", hexless(MemoryRecords.withIdempotentRecords(none, 4711L, (short) 3, 17, records())));
        line("transactional", hexless(MemoryRecords.withTransactionalRecords(none, 4711L, (short) 3, 17, records())));
        line("keyed-compacted", 12, true, create, single);
        line("magic-0", hexless(MemoryRecords.withRecords(RecordBatch.MAGIC_VALUE_V0, none, record(NOW, "k", "v".repeat(60)))));
        line("magic-1", hexless(MemoryRecords.withRecords(RecordBatch.MAGIC_VALUE_V1, none, record(NOW, "k", "v".repeat(60)))));
        line("magic-3", damaged(plain, true, b -> b.put(16, (byte) 3)));
        line("magic-negative", damaged(plain, true, b -> b.put(16, (byte) -1)));
        line("count-zero", damaged(single, true, b -> b.putInt(57, 0)));
        line("count-negative", damaged(single, true, b -> b.putInt(57, -1)));
        line("last-offset-delta-negative", damaged(single, true, b -> b.putInt(23, -1)));
        line("length-small", damaged(single, true, b -> b.putInt(8, 48)));
        line("length-tiny", damaged(single, true, b -> b.putInt(8, 1)));
        line("length-negative", damaged(single, true, b -> b.putInt(8, -1)));
        line("length-beyond", damaged(single, true, b -> b.putInt(8, 10_000)));
        line("header-only-cut", Arrays.copyOf(single, 60));
        line("base-offset", damaged(single, true, b -> b.putLong(0, 5)));
        line("two-batches", joined(single, single));
        line("bytes-inside", resized(single, single.length + 3));
        line("control", damaged(single, true, b -> b.putShort(21, (short) 0x20)));
        line("append-time-from-producer-append", 12, false, append, damaged(single, true, b -> b.putShort(21, (short) 8)));
        line("append-time-from-producer-create", damaged(single, true, b -> b.putShort(21, (short) 8)));
        line("negative-sequence", damaged(hexless(MemoryRecords.withIdempotentRecords(none, 4711L, (short) 3, 17, records())), true, b -> b.putInt(53, -1)));
        line("timestamp-early", batch(none, record(NOW, "k", "v"), record(NOW - 3_600_001, "k", "v")));
        line("timestamp-earliest", batch(none, record(NOW - 3_600_000, "k", "v")));
        line("timestamp-late", batch(none, record(NOW + 60_001, "k", "v")));
        line("timestamp-latest", batch(none, record(NOW + 60_000, "k", "v")));
        line("timestamp-none", batch(none, record(-1, "k", "v")));
        line("timestamp-late-append", 12, false, append, batch(none, record(NOW + 60_001, "k", "v")));
        line("timestamp-late-and-null-key", 12, true, create, batch(none, record(NOW + 60_001, "k", "v"), record(NOW, null, "v")));
        line("compression-5", damaged(plain, true, b -> b.putShort(21, (short) 5)));
        line("compression-lie", damaged(plain, true, b -> b.putShort(21, (short) 1)));
        // In the single record: length, attributes, timestamp delta, offset delta, key length…
        line("record-length", damaged(single, true, b -> b.put(61, (byte) (b.get(61) + 2))));
        line("record-length-negative", damaged(single, true, b -> b.put(61, (byte) 1)));
        line("record-key-length", damaged(single, true, b -> b.put(65, (byte) 120)));
        line("record-headers-negative", damaged(single, true, b -> b.put(single.length - 1, (byte) 1)));
        line("record-headers-missing", damaged(single, true, b -> b.put(single.length - 1, (byte) 2)));
        line("record-varint-endless", damaged(plain, true, b -> { for (int i = 61; i < 75; i++) b.put(i, (byte) 0xff); }));
        line("offset-delta", damaged(single, true, b -> b.put(64, (byte) 2)));
    }

    static Time stoppedClock() {
        return (Time) java.lang.reflect.Proxy.newProxyInstance(Time.class.getClassLoader(), new Class<?>[] {Time.class},
            (proxy, method, args) -> method.getReturnType() == long.class ? NOW : null);
    }

    static class Recorder implements LogValidator.MetricsRecorder {
        public void recordInvalidMagic() { }
        public void recordInvalidOffset() { }
        public void recordInvalidSequence() { }
        public void recordInvalidChecksums() { }
        public void recordNoKeyCompactedTopic() { }
    }
}
