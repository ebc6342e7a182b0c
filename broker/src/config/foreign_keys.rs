//! Keys that Apache Kafka 4.4 has for its brokers and that mean nothing here yet.
//!
//! They are accepted, so that a `server.properties` that works with Kafka starts this broker, and a
//! start names each one that was set: nobody should believe that it does something. Those whose
//! being ignored would open a door stop the start instead. What Kafka can change of them while it runs can be
//! changed here too and is shown, as far as it is about how Kafka works inside; what is about who may come in, or
//! where replicas go, is refused then, since nobody reads a log after a change that was taken.

use super::key::ConfigKind::{
    self, Boolean, Class, Double, Int, List, Long, Password, Short, String as Text,
};
use super::key::{KeySpec, UpdateMode};

/// Keys that must not be ignored: a broker that does not check what the operator believes to be
/// checked is worse than one that does not start.
pub static REFUSED: &[(&str, &str)] = &[
    (
        "authorizer.class.name",
        "access control lists are not checked by this version",
    ),
    (
        "create.topic.policy.class.name",
        "policies written in Java cannot be run",
    ),
    (
        "alter.config.policy.class.name",
        "policies written in Java cannot be run",
    ),
    (
        "client.quota.callback.class",
        "plugins written in Java cannot be run",
    ),
    (
        "remote.log.storage.system.enable",
        "tiered storage is not available in this version",
    ),
];

/// Name and type of each, in alphabetical order.
pub static FOREIGN: &[(&str, ConfigKind)] = &[
    ("add.partitions.to.txn.retry.backoff.max.ms", Int),
    ("add.partitions.to.txn.retry.backoff.ms", Int),
    ("alter.config.policy.class.name", Class),
    ("alter.log.dirs.replication.quota.window.num", Int),
    ("alter.log.dirs.replication.quota.window.size.seconds", Int),
    ("authorizer.class.name", Text),
    ("background.threads", Int),
    ("broker.heartbeat.interval.ms", Int),
    ("broker.id", Int),
    ("client.quota.callback.class", Class),
    ("config.providers", List),
    ("connection.failed.authentication.delay.ms", Int),
    ("connections.max.reauth.ms", Long),
    ("controller.performance.always.log.threshold.ms", Long),
    ("controller.performance.sample.period.ms", Long),
    ("controller.quorum.append.linger.ms", Int),
    ("controller.quorum.election.backoff.max.ms", Int),
    ("controller.quorum.election.timeout.ms", Int),
    ("controller.quorum.fetch.max.bytes", Int),
    ("controller.quorum.fetch.snapshot.max.bytes", Int),
    ("controller.quorum.fetch.timeout.ms", Int),
    ("controller.quorum.request.timeout.ms", Int),
    ("controller.quorum.retry.backoff.ms", Int),
    ("controller.quota.window.num", Int),
    ("controller.quota.window.size.seconds", Int),
    ("controller.socket.timeout.ms", Int),
    ("cordoned.log.dirs", List),
    ("create.topic.policy.class.name", Class),
    ("delegation.token.expiry.check.interval.ms", Long),
    ("delegation.token.expiry.time.ms", Long),
    ("delegation.token.max.lifetime.ms", Long),
    ("delegation.token.secret.key", Password),
    ("delete.records.purgatory.purge.interval.requests", Int),
    ("early.start.listeners", List),
    ("errors.deadletterqueue.auto.create.topics.enable", Boolean),
    ("errors.deadletterqueue.topic.name.prefix", Text),
    ("fetch.purgatory.purge.interval.requests", Int),
    ("follower.fetch.last.tiered.offset.enable", Boolean),
    ("group.consumer.assignor.offload.enable", Boolean),
    ("group.coordinator.append.linger.ms", Int),
    ("group.coordinator.background.threads", Int),
    ("group.coordinator.cached.buffer.max.bytes", Int),
    ("group.coordinator.rebalance.protocols", List),
    ("group.coordinator.threads", Int),
    ("group.share.assignment.interval.ms", Int),
    ("group.share.assignor.offload.enable", Boolean),
    ("group.share.assignors", List),
    ("group.share.delivery.count.limit", Int),
    ("group.share.dlq.manager.class.name", Text),
    ("group.share.heartbeat.interval.ms", Int),
    ("group.share.initialize.retry.interval.ms", Int),
    ("group.share.max.assignment.interval.ms", Int),
    ("group.share.max.delivery.count.limit", Int),
    ("group.share.max.heartbeat.interval.ms", Int),
    ("group.share.max.partition.max.record.locks", Int),
    ("group.share.max.record.lock.duration.ms", Int),
    ("group.share.max.session.timeout.ms", Int),
    ("group.share.max.share.sessions", Int),
    ("group.share.max.size", Int),
    ("group.share.min.assignment.interval.ms", Int),
    ("group.share.min.delivery.count.limit", Int),
    ("group.share.min.heartbeat.interval.ms", Int),
    ("group.share.min.partition.max.record.locks", Int),
    ("group.share.min.record.lock.duration.ms", Int),
    ("group.share.min.session.timeout.ms", Int),
    ("group.share.partition.max.record.locks", Int),
    ("group.share.persister.class.name", Text),
    ("group.share.record.lock.duration.ms", Int),
    ("group.share.session.timeout.ms", Int),
    ("group.streams.acceptable.recovery.lag", Long),
    ("group.streams.assignment.interval.ms", Int),
    ("group.streams.assignor.offload.enable", Boolean),
    ("group.streams.assignors", List),
    ("group.streams.heartbeat.interval.ms", Int),
    ("group.streams.initial.rebalance.delay.ms", Int),
    ("group.streams.max.assignment.interval.ms", Int),
    ("group.streams.max.heartbeat.interval.ms", Int),
    ("group.streams.max.session.timeout.ms", Int),
    ("group.streams.max.size", Int),
    ("group.streams.max.standby.replicas", Int),
    ("group.streams.max.warmup.replicas", Int),
    ("group.streams.min.assignment.interval.ms", Int),
    ("group.streams.min.heartbeat.interval.ms", Int),
    ("group.streams.min.session.timeout.ms", Int),
    ("group.streams.min.task.offset.interval.ms", Int),
    ("group.streams.num.standby.replicas", Int),
    ("group.streams.num.warmup.replicas", Int),
    ("group.streams.rack.aware.assignment.tags", List),
    ("group.streams.session.timeout.ms", Int),
    ("group.streams.task.offset.interval.ms", Int),
    ("group.streams.topology.description.plugin.class", Class),
    ("initial.broker.registration.timeout.ms", Int),
    ("internal.metadata.delete.delay.millis", Long),
    ("internal.metadata.log.segment.bytes", Int),
    ("internal.metadata.max.batch.size.in.bytes", Int),
    ("kafka.metrics.polling.interval.secs", Int),
    ("kafka.metrics.reporters", List),
    ("log.cleaner.io.buffer.load.factor", Double),
    ("log.cleaner.io.buffer.size", Int),
    ("log.dir.failure.timeout.ms", Long),
    ("log.flush.offset.checkpoint.interval.ms", Int),
    ("log.flush.scheduler.interval.ms", Long),
    ("log.flush.start.offset.checkpoint.interval.ms", Int),
    ("log.initial.task.delay.ms", Long),
    ("log.local.retention.bytes", Long),
    ("log.local.retention.ms", Long),
    ("log.remote.copy.lag.bytes", Long),
    ("log.remote.copy.lag.ms", Long),
    ("max.connection.creation.rate", Int),
    ("metadata.log.segment.bytes", Int),
    ("metadata.log.segment.ms", Long),
    ("metadata.max.idle.interval.ms", Int),
    ("metadata.max.retention.bytes", Long),
    ("metadata.max.retention.ms", Long),
    ("metric.reporters", List),
    ("metrics.num.samples", Int),
    ("metrics.recording.level", Text),
    ("metrics.sample.window.ms", Long),
    ("num.io.threads", Int),
    ("num.network.threads", Int),
    ("num.recovery.threads.per.data.dir", Int),
    ("num.replica.alter.log.dirs.threads", Int),
    ("num.replica.fetchers", Int),
    ("offsets.load.buffer.size", Int),
    ("offsets.topic.compression.codec", Int),
    ("principal.builder.class", Class),
    ("producer.purgatory.purge.interval.requests", Int),
    ("queued.max.requests", Int),
    ("quota.window.num", Int),
    ("quota.window.size.seconds", Int),
    ("remote.fetch.max.wait.ms", Int),
    ("remote.list.offsets.request.timeout.ms", Long),
    ("remote.log.index.file.cache.total.size.bytes", Long),
    ("remote.log.index.file.cache.ttl.ms", Long),
    ("remote.log.manager.copier.thread.pool.size", Int),
    ("remote.log.manager.copy.max.bytes.per.second", Long),
    ("remote.log.manager.copy.quota.window.num", Int),
    ("remote.log.manager.copy.quota.window.size.seconds", Int),
    ("remote.log.manager.expiration.thread.pool.size", Int),
    ("remote.log.manager.fetch.max.bytes.per.second", Long),
    ("remote.log.manager.fetch.quota.window.num", Int),
    ("remote.log.manager.fetch.quota.window.size.seconds", Int),
    ("remote.log.manager.follower.thread.pool.size", Int),
    ("remote.log.manager.task.interval.ms", Long),
    ("remote.log.manager.task.retry.backoff.max.ms", Long),
    ("remote.log.manager.task.retry.backoff.ms", Long),
    ("remote.log.manager.task.retry.jitter", Double),
    ("remote.log.manager.thread.pool.size", Int),
    ("remote.log.metadata.custom.metadata.max.bytes", Int),
    ("remote.log.metadata.manager.class.name", Text),
    ("remote.log.metadata.manager.class.path", Text),
    ("remote.log.metadata.manager.impl.prefix", Text),
    ("remote.log.metadata.manager.listener.name", Text),
    ("remote.log.reader.max.pending.tasks", Int),
    ("remote.log.reader.threads", Int),
    ("remote.log.storage.manager.class.name", Text),
    ("remote.log.storage.manager.class.path", Text),
    ("remote.log.storage.manager.impl.prefix", Text),
    ("remote.log.storage.system.enable", Boolean),
    ("replica.alter.log.dirs.io.max.bytes.per.second", Long),
    ("replica.fetch.backoff.ms", Int),
    ("replica.fetch.max.bytes", Int),
    ("replica.fetch.min.bytes", Int),
    ("replica.fetch.response.max.bytes", Int),
    ("replica.fetch.wait.max.ms", Int),
    ("replica.high.watermark.checkpoint.interval.ms", Long),
    ("replica.socket.receive.buffer.bytes", Int),
    ("replica.socket.timeout.ms", Int),
    ("replication.quota.window.num", Int),
    ("replication.quota.window.size.seconds", Int),
    ("request.timeout.ms", Int),
    ("sasl.client.callback.handler.class", Class),
    ("sasl.enabled.mechanisms", List),
    ("sasl.jaas.config", Password),
    ("sasl.kerberos.kinit.cmd", Text),
    ("sasl.kerberos.min.time.before.relogin", Long),
    ("sasl.kerberos.principal.to.local.rules", List),
    ("sasl.kerberos.service.name", Text),
    ("sasl.kerberos.ticket.renew.jitter", Double),
    ("sasl.kerberos.ticket.renew.window.factor", Double),
    ("sasl.login.callback.handler.class", Class),
    ("sasl.login.class", Class),
    ("sasl.login.connect.timeout.ms", Int),
    ("sasl.login.read.timeout.ms", Int),
    ("sasl.login.refresh.buffer.seconds", Short),
    ("sasl.login.refresh.min.period.seconds", Short),
    ("sasl.login.refresh.window.factor", Double),
    ("sasl.login.refresh.window.jitter", Double),
    ("sasl.login.retry.backoff.max.ms", Long),
    ("sasl.login.retry.backoff.ms", Long),
    ("sasl.mechanism.controller.protocol", Text),
    ("sasl.mechanism.inter.broker.protocol", Text),
    ("sasl.oauthbearer.allow.unverified.audience", Boolean),
    ("sasl.oauthbearer.allow.unverified.issuer", Boolean),
    ("sasl.oauthbearer.assertion.algorithm", Text),
    ("sasl.oauthbearer.assertion.claim.aud", Text),
    ("sasl.oauthbearer.assertion.claim.exp.seconds", Int),
    ("sasl.oauthbearer.assertion.claim.iss", Text),
    ("sasl.oauthbearer.assertion.claim.jti.include", Boolean),
    ("sasl.oauthbearer.assertion.claim.nbf.seconds", Int),
    ("sasl.oauthbearer.assertion.claim.sub", Text),
    ("sasl.oauthbearer.assertion.file", Text),
    ("sasl.oauthbearer.assertion.private.key.file", Text),
    (
        "sasl.oauthbearer.assertion.private.key.passphrase",
        Password,
    ),
    ("sasl.oauthbearer.assertion.template.file", Text),
    ("sasl.oauthbearer.client.credentials.client.id", Text),
    (
        "sasl.oauthbearer.client.credentials.client.secret",
        Password,
    ),
    ("sasl.oauthbearer.clock.skew.seconds", Int),
    ("sasl.oauthbearer.expected.audience", List),
    ("sasl.oauthbearer.expected.issuer", Text),
    ("sasl.oauthbearer.jwks.endpoint.refresh.ms", Long),
    ("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", Long),
    ("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", Long),
    ("sasl.oauthbearer.jwks.endpoint.url", Text),
    ("sasl.oauthbearer.jwt.retriever.class", Class),
    ("sasl.oauthbearer.jwt.validator.class", Class),
    ("sasl.oauthbearer.scope", Text),
    ("sasl.oauthbearer.scope.claim.name", Text),
    ("sasl.oauthbearer.sub.claim.name", Text),
    ("sasl.oauthbearer.token.endpoint.url", Text),
    ("sasl.server.callback.handler.class", Class),
    ("sasl.server.max.receive.size", Int),
    ("security.providers", Text),
    ("server.max.startup.time.ms", Long),
    ("share.coordinator.append.linger.ms", Int),
    ("share.coordinator.cached.buffer.max.bytes", Int),
    ("share.coordinator.cold.partition.snapshot.interval.ms", Int),
    ("share.coordinator.load.buffer.size", Int),
    (
        "share.coordinator.snapshot.update.records.per.snapshot",
        Int,
    ),
    ("share.coordinator.state.topic.compression.codec", Int),
    ("share.coordinator.state.topic.min.isr", Short),
    ("share.coordinator.state.topic.num.partitions", Int),
    ("share.coordinator.state.topic.prune.interval.ms", Int),
    ("share.coordinator.state.topic.replication.factor", Short),
    ("share.coordinator.state.topic.segment.bytes", Int),
    ("share.coordinator.threads", Int),
    ("share.coordinator.write.timeout.ms", Int),
    ("share.fetch.purgatory.purge.interval.requests", Int),
    ("socket.connection.setup.timeout.max.ms", Long),
    ("socket.connection.setup.timeout.ms", Long),
    ("ssl.allow.dn.changes", Boolean),
    ("ssl.allow.san.changes", Boolean),
    ("ssl.cipher.suites", List),
    ("ssl.client.auth", Text),
    ("ssl.enabled.protocols", List),
    ("ssl.endpoint.identification.algorithm", Text),
    ("ssl.engine.factory.class", Class),
    ("ssl.key.password", Password),
    ("ssl.keymanager.algorithm", Text),
    ("ssl.keystore.certificate.chain", Password),
    ("ssl.keystore.key", Password),
    ("ssl.keystore.location", Text),
    ("ssl.keystore.password", Password),
    ("ssl.keystore.type", Text),
    ("ssl.principal.mapping.rules", Text),
    ("ssl.protocol", Text),
    ("ssl.provider", Text),
    ("ssl.secure.random.implementation", Text),
    ("ssl.trustmanager.algorithm", Text),
    ("ssl.truststore.certificates", Password),
    ("ssl.truststore.location", Text),
    ("ssl.truststore.password", Password),
    ("ssl.truststore.type", Text),
    ("transaction.two.phase.commit.enable", Boolean),
    ("unclean.leader.election.interval.ms", Long),
    ("unstable.api.versions.enable", Boolean),
    ("unstable.feature.versions.enable", Boolean),
];

/// Those that can be changed for all brokers or one, in alphabetical order.
static CLUSTER_WIDE: &[&str] = &[
    "background.threads",
    "errors.deadletterqueue.auto.create.topics.enable",
    "errors.deadletterqueue.topic.name.prefix",
    "follower.fetch.last.tiered.offset.enable",
    "group.consumer.assignor.offload.enable",
    "group.coordinator.cached.buffer.max.bytes",
    "group.share.assignment.interval.ms",
    "group.share.assignor.offload.enable",
    "group.streams.assignment.interval.ms",
    "group.streams.assignor.offload.enable",
    "log.cleaner.io.buffer.load.factor",
    "log.cleaner.io.buffer.size",
    "log.local.retention.bytes",
    "log.local.retention.ms",
    "log.remote.copy.lag.bytes",
    "log.remote.copy.lag.ms",
    "metric.reporters",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
    "remote.fetch.max.wait.ms",
    "remote.list.offsets.request.timeout.ms",
    "remote.log.index.file.cache.total.size.bytes",
    "remote.log.manager.copier.thread.pool.size",
    "remote.log.manager.copy.max.bytes.per.second",
    "remote.log.manager.expiration.thread.pool.size",
    "remote.log.manager.fetch.max.bytes.per.second",
    "remote.log.manager.follower.thread.pool.size",
    "remote.log.reader.threads",
    "replica.alter.log.dirs.io.max.bytes.per.second",
    "share.coordinator.cached.buffer.max.bytes",
];

/// Those that can be changed for one broker, in alphabetical order.
static PER_BROKER: &[&str] = &[
    "sasl.kerberos.kinit.cmd",
    "sasl.kerberos.min.time.before.relogin",
    "sasl.kerberos.service.name",
    "sasl.kerberos.ticket.renew.jitter",
    "sasl.kerberos.ticket.renew.window.factor",
    "sasl.login.refresh.buffer.seconds",
    "sasl.login.refresh.min.period.seconds",
    "sasl.login.refresh.window.factor",
    "sasl.login.refresh.window.jitter",
];

/// Prefixes of keys that Kafka hands to plugins.
pub static PLUGIN_PREFIXES: &[&str] = &["config.providers.", "rlmm.config.", "rsm.config."];

/// The type of a foreign key.
pub fn find(name: &str) -> Option<ConfigKind> {
    row(name).map(|(_, kind)| *kind)
}

/// A foreign key that can be changed while the broker runs.
pub fn dynamic(name: &str) -> Option<KeySpec> {
    let (name, kind) = *row(name)?;
    let update = if CLUSTER_WIDE.binary_search(&name).is_ok() {
        UpdateMode::ClusterWide
    } else if PER_BROKER.binary_search(&name).is_ok() {
        UpdateMode::PerBroker
    } else {
        return None;
    };
    let doc = "Known to Kafka; it has no effect here.";
    Some(KeySpec::new(name, kind).update(update).doc(doc))
}

fn row(name: &str) -> Option<&'static (&'static str, ConfigKind)> {
    let at = FOREIGN.binary_search_by_key(&name, |(name, _)| name).ok()?;
    FOREIGN.get(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_keys_are_in_order_so_that_each_is_found() {
        assert!(FOREIGN.is_sorted_by_key(|(name, _)| name));
        for (name, kind) in FOREIGN {
            assert_eq!(find(name), Some(*kind));
        }
        for (name, _) in REFUSED {
            assert!(find(name).is_some(), "{name}");
        }
        assert_eq!(find("num.partitions"), None);
    }

    #[test]
    fn what_can_be_changed_is_found_and_no_secret_is_kept_for_nothing() {
        for names in [CLUSTER_WIDE, PER_BROKER] {
            assert!(names.is_sorted());
            for name in names {
                let key = dynamic(name).expect(name);
                assert!(!key.is_sensitive(), "{name}");
            }
        }
        let update = |name| dynamic(name).map(|key| key.update);
        assert_eq!(update("num.io.threads"), Some(UpdateMode::ClusterWide));
        assert_eq!(
            update("sasl.kerberos.min.time.before.relogin"),
            Some(UpdateMode::PerBroker)
        );
        for refused in ["ssl.client.auth", "sasl.jaas.config", "broker.id"] {
            assert!(dynamic(refused).is_none(), "{refused}");
        }
    }
}
