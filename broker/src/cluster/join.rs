//! How a node that has never been in a cluster gets into one.
//!
//! A voter whose disk was lost has forgotten what it voted for. If it came back as a fresh voter, two
//! leaders could be elected in one term. So a voter that remembers no cluster first finds out whether
//! there is one:
//! - if most of the configured voters, itself among them, know of none, they found it together; so
//!   does a controller that names nobody else, by itself;
//! - otherwise the metadata leader decides. It knows the brokers with their data directories, and
//!   refuses an old id on another disk.
//!
//! Until then this node answers that it is fresh, and gives no vote. A node that was given an id twice is told from its
//! namesake by the address that the configuration has for the id: it must lead to this process and to no other. Voters
//! found nothing together unless they name the same ones.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use odradek_protocol::codec::Uuid;
use odradek_protocol::ids::NodeId;
use tokio::time::Instant;

use super::Controllers;
use crate::peer::message::Join;
use crate::peer::{OwnAddress, PeerReply, PeerRequest, Peers};

/// How long one node may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between two rounds.
const PAUSE: Duration = Duration::from_millis(100);
/// How often the log says what is waited for.
const TOLD_EVERY: Duration = Duration::from_secs(5);
/// How long a node that cannot reach itself waits for its namesake, if there is one, to be there.
const NAMESAKE_PATIENCE: Duration = Duration::from_secs(5);

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
#[error("this node cannot take part: {reason}")]
pub struct JoinRefused {
    /// Why, as the metadata leader says, or who is at this node's address.
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
                self.refused = Some(JoinRefused { reason });
            }
            Ok(PeerReply::Disagrees { reason }) => self.silent.push(reason),
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

/// Makes sure that nobody else is at this node's own address under its id.
async fn look_for_namesake(peers: &Peers) -> Result<(), JoinRefused> {
    let deadline = Instant::now() + NAMESAKE_PATIENCE;
    loop {
        match peers.look_at_own_address().await {
            OwnAddress::LeadsHere => return Ok(()),
            OwnAddress::LeadsElsewhere(reason) => {
                return Err(JoinRefused { reason });
            }
            OwnAddress::Silent(why) if Instant::now() >= deadline => {
                tracing::warn!(%why, "this node does not reach itself at its own address");
                return Ok(());
            }
            OwnAddress::Silent(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// Asks the other voters until it is clear how this one takes part.
///
/// # Errors
/// The metadata leader refuses this node, or there is another one with its id.
pub async fn join(
    peers: &Peers,
    voters: &[NodeId],
    directory: Uuid,
) -> Result<Joined, JoinRefused> {
    let own = peers.local().node_id();
    if let Some(decision) = Round::default().decide(voters.len()) {
        return decision;
    }
    look_for_namesake(peers).await?;
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

/// Asks to be let into a cluster that is there, whose voters `controllers` knows; its id.
///
/// # Errors
/// The metadata leader refuses this node.
pub async fn ask_in(controllers: &Controllers, directory: Uuid) -> Result<String, JoinRefused> {
    let request = PeerRequest::Join(Join {
        directory,
        voters: Vec::new(),
    });
    loop {
        match controllers.ask(&request, TOLD_EVERY).await {
            Ok(PeerReply::Welcome { cluster_id }) => return Ok(cluster_id),
            Ok(PeerReply::Refused { reason }) => return Err(JoinRefused { reason }),
            // A voter that is about to found it.
            Ok(_) => {}
            Err(error) => tracing::info!(%error, "waiting for the cluster's leader"),
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
        assert_eq!(
            Round::default().decide(1),
            Some(Ok(Joined::Founding)),
            "there is nobody to ask"
        );
    }

    #[test]
    fn who_names_other_voters_founds_nothing_with_this_one() {
        let disagrees = || {
            Ok(PeerReply::Disagrees {
                reason: "other voters".to_owned(),
            })
        };
        assert_eq!(decide(vec![disagrees(), disagrees()]), None);
        assert_eq!(
            decide(vec![disagrees(), Ok(PeerReply::Fresh)]),
            Some(Ok(Joined::Founding))
        );
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
