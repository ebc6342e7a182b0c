//! How a node that has never been in a cluster gets into one.
//!
//! A voter whose disk was lost has forgotten what it voted for. If it came back as a fresh voter, two
//! leaders could be elected in one term. So a voter that remembers no cluster first finds out whether
//! there is one:
//! - if most of the configured voters, itself among them, know of none, they found it together;
//! - otherwise the metadata leader decides. It knows the brokers with their data directories, and
//!   refuses an old id on another disk.
//!
//! Until then this node answers that it is fresh, and gives no vote.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use odradek_protocol::codec::Uuid;
use odradek_protocol::ids::NodeId;
use tokio::time::Instant;

use crate::peer::message::Join;
use crate::peer::{PeerReply, PeerRequest, Peers};

/// How long one node may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between two rounds.
const PAUSE: Duration = Duration::from_millis(100);
/// How often the log says what is waited for.
const TOLD_EVERY: Duration = Duration::from_secs(5);

/// How this node takes part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Joined {
    /// It is one of those that found the cluster.
    Founding,
    /// The cluster exists, and this node is new to it.
    Invited {
        /// Its id.
        cluster_id: String,
    },
}

/// Why this node cannot take part.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("node {by} refuses this node: {reason}")]
pub struct JoinRefused {
    /// Who says so.
    pub by: NodeId,
    /// Why.
    pub reason: String,
}

/// What the answers of one round come to.
#[derive(Debug, Default, PartialEq, Eq)]
struct Round {
    fresh: usize,
    welcome: Option<String>,
    refused: Option<JoinRefused>,
    silent: Vec<String>,
}

impl Round {
    fn add(&mut self, from: NodeId, answer: Result<PeerReply, String>) {
        match answer {
            Ok(PeerReply::Fresh) => self.fresh += 1,
            Ok(PeerReply::Welcome { cluster_id }) => self.welcome = Some(cluster_id),
            Ok(PeerReply::Refused { reason }) => {
                self.refused = Some(JoinRefused { by: from, reason });
            }
            // It follows a cluster whose leader has to say.
            Ok(_) => self
                .silent
                .push(format!("node {from} refers to the metadata leader")),
            Err(error) => self.silent.push(error),
        }
    }

    /// What to do, `voters` being their number with this node.
    fn decide(&self, voters: usize) -> Option<Result<Joined, JoinRefused>> {
        if let Some(refused) = &self.refused {
            return Some(Err(refused.clone()));
        }
        if let Some(cluster_id) = &self.welcome {
            let cluster_id = cluster_id.clone();
            return Some(Ok(Joined::Invited { cluster_id }));
        }
        let with_this = self.fresh + 1;
        (with_this * 2 > voters).then_some(Ok(Joined::Founding))
    }
}

/// Asks the other voters until it is clear how this one takes part.
///
/// # Errors
/// The metadata leader refuses this node.
pub async fn join(
    peers: &Peers,
    voters: &[NodeId],
    directory: Uuid,
) -> Result<Joined, JoinRefused> {
    let own = peers.local().node_id();
    let request = PeerRequest::Join(Join {
        directory,
        voters: voters.to_vec(),
    });
    let mut told = Instant::now();
    loop {
        let mut round = Round::default();
        let mut asking: FuturesUnordered<_> = voters
            .iter()
            .filter(|voter| **voter != own)
            .map(|voter| {
                let answer = peers.call_within(*voter, request.clone(), ANSWER_TIMEOUT);
                async move { (*voter, answer.await.map_err(|error| error.to_string())) }
            })
            .collect();
        while let Some((from, answer)) = asking.next().await {
            round.add(from, answer);
            if let Some(decision) = round.decide(voters.len()) {
                return decision;
            }
        }
        if told.elapsed() >= TOLD_EVERY {
            told = Instant::now();
            let why = round.silent.join("; ");
            tracing::info!(%why, "waiting for most of the voters, or for the cluster's leader");
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(answers: Vec<Result<PeerReply, String>>) -> Option<Result<Joined, JoinRefused>> {
        let voters = answers.len() + 1;
        let mut round = Round::default();
        for (from, answer) in (2..).map(NodeId::new).zip(answers) {
            round.add(from, answer);
        }
        round.decide(voters)
    }

    fn silent() -> Result<PeerReply, String> {
        Err("away".to_owned())
    }

    #[test]
    fn most_voters_without_a_cluster_found_one() {
        assert_eq!(
            decide(vec![Ok(PeerReply::Fresh), silent()]),
            Some(Ok(Joined::Founding))
        );
        assert_eq!(decide(vec![silent(), silent()]), None);
        let four = vec![Ok(PeerReply::Fresh), silent(), silent()];
        assert_eq!(decide(four), None);
    }

    #[test]
    fn a_cluster_that_exists_is_never_founded_again_by_what_is_left_of_it() {
        let referred = || Ok(PeerReply::NotController { leader: None });
        assert_eq!(decide(vec![referred(), silent()]), None);
        assert_eq!(decide(vec![referred(), referred()]), None);
        let cluster_id = "c".to_owned();
        let welcome = Ok(PeerReply::Welcome {
            cluster_id: cluster_id.clone(),
        });
        assert_eq!(
            decide(vec![welcome, referred()]),
            Some(Ok(Joined::Invited { cluster_id }))
        );
    }

    #[test]
    fn a_refusal_is_final() {
        let refused = Ok(PeerReply::Refused {
            reason: "another disk".to_owned(),
        });
        assert!(matches!(
            decide(vec![Ok(PeerReply::Fresh), refused]),
            Some(Err(_))
        ));
    }
}
