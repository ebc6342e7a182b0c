//! Which brokers are fenced for being silent, and which come back: a pure state machine.
//!
//! A broker is silent from its last answer to a probe on, or from when this leader first saw its
//! registration, whichever is later: a new leader gives everybody a whole session.

use std::collections::HashMap;
use std::time::Duration;

use odradek_protocol::ids::NodeId;
use tokio::time::Instant;

/// An answer this recent brings a fenced broker back.
const RETURNED_WITHIN: Duration = Duration::from_secs(1);

/// A registered broker.
#[derive(Debug, Clone, Copy)]
pub struct Registered {
    /// The broker.
    pub node: NodeId,
    /// Number of its registration.
    pub broker_epoch: i64,
    /// Whether it may not lead.
    pub fenced: bool,
    /// Whether it has said that it stops.
    pub stopping: bool,
    /// When it last answered a probe of this node.
    pub last_answered: Option<Instant>,
}

/// What is to be done about a broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It has been silent for a whole session.
    Fence(NodeId),
    /// It answers again.
    Unfence(NodeId),
}

/// See the module.
#[derive(Debug, Default)]
pub struct Sessions {
    seen: HashMap<NodeId, (i64, Instant)>,
}

impl Sessions {
    /// Looks at all registered brokers but this node.
    pub fn look(
        &mut self,
        now: Instant,
        timeout: Duration,
        brokers: impl IntoIterator<Item = Registered>,
    ) -> Vec<Change> {
        let mut seen = HashMap::new();
        let mut changes = Vec::new();
        for broker in brokers {
            let since = self
                .seen
                .get(&broker.node)
                .filter(|(epoch, _)| *epoch == broker.broker_epoch)
                .map_or(now, |(_, since)| *since);
            seen.insert(broker.node, (broker.broker_epoch, since));
            let heard = broker.last_answered.map_or(since, |at| at.max(since));
            let silent = now.saturating_duration_since(heard);
            let answers = broker.last_answered.is_some_and(|at| {
                at >= since && now.saturating_duration_since(at) < RETURNED_WITHIN
            });
            if !broker.fenced && silent >= timeout {
                changes.push(Change::Fence(broker.node));
            } else if broker.fenced && !broker.stopping && answers {
                changes.push(Change::Unfence(broker.node));
            }
        }
        self.seen = seen;
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(9);

    fn broker(start: Instant, answered_ms: Option<u64>, fenced: bool) -> Registered {
        Registered {
            node: NodeId::new(2),
            broker_epoch: 5,
            fenced,
            stopping: false,
            last_answered: answered_ms.map(|ms| start + Duration::from_millis(ms)),
        }
    }

    #[test]
    fn a_broker_is_fenced_after_a_whole_session_of_silence_and_not_before() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut sessions = Sessions::default();
        let silent = broker(start, None, false);
        assert_eq!(sessions.look(at(0), TIMEOUT, [silent]), []);
        assert_eq!(sessions.look(at(8_999), TIMEOUT, [silent]), []);
        let heard = broker(start, Some(8_000), false);
        assert_eq!(sessions.look(at(9_500), TIMEOUT, [heard]), []);
        let fence = Change::Fence(NodeId::new(2));
        assert_eq!(sessions.look(at(17_000), TIMEOUT, [heard]), [fence]);
    }

    #[test]
    fn a_fenced_broker_comes_back_when_it_answers_unless_it_stops() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut sessions = Sessions::default();
        assert_eq!(
            sessions.look(at(0), TIMEOUT, [broker(start, None, true)]),
            []
        );
        let back = broker(start, Some(5_000), true);
        assert_eq!(
            sessions.look(at(5_100), TIMEOUT, [back]),
            [Change::Unfence(NodeId::new(2))]
        );
        let stopping = Registered {
            stopping: true,
            ..back
        };
        assert_eq!(sessions.look(at(5_100), TIMEOUT, [stopping]), []);
        assert_eq!(sessions.look(at(7_000), TIMEOUT, [back]), []);
    }

    #[test]
    fn a_registration_begins_a_new_session() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut sessions = Sessions::default();
        let first = broker(start, None, false);
        assert_eq!(sessions.look(at(0), TIMEOUT, [first]), []);
        let again = Registered {
            broker_epoch: 6,
            ..first
        };
        assert_eq!(sessions.look(at(9_000), TIMEOUT, [again]), []);
        assert_eq!(sessions.look(at(17_999), TIMEOUT, [again]), []);
        assert_eq!(sessions.look(at(18_000), TIMEOUT, [again]).len(), 1);
    }
}
