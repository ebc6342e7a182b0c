//! That each rule notices: something is broken on purpose, and within a few seeds the rule says so.

use super::checker::Rule;
use super::sabotage::Sabotage;
use super::simulated;

/// Seeds to try.
const SEEDS: u64 = 30;

fn is_noticed(sabotage: Sabotage, rule: Rule) {
    let mut others = Vec::new();
    for seed in 1..=SEEDS {
        let outcome = simulated(seed, Some(sabotage));
        if outcome.violations.iter().any(|(found, _)| *found == rule) {
            return;
        }
        others.extend(outcome.violations);
    }
    panic!("{rule:?} did not notice {sabotage:?}: {others:#?}");
}

#[test]
fn two_owners_of_a_partition_are_noticed() {
    is_noticed(Sabotage::ShareAssignments, Rule::OneOwner);
}

#[test]
fn a_lost_commit_is_noticed() {
    is_noticed(Sabotage::LoseCommitted, Rule::CommitsStand);
}

#[test]
fn a_commit_of_a_fenced_member_is_noticed() {
    is_noticed(Sabotage::AcknowledgeRefused, Rule::FencedNeverCommit);
}

#[test]
fn half_a_transaction_is_noticed() {
    is_noticed(Sabotage::TwistMarkers, Rule::NeverHalf);
}

#[test]
fn an_aborted_record_that_is_read_is_noticed() {
    is_noticed(Sabotage::HideAborted, Rule::NoAbortedRead);
}

#[test]
fn a_stable_offset_beyond_an_open_transaction_is_noticed() {
    is_noticed(Sabotage::IgnoreOpen, Rule::LastStableOffset);
}

#[test]
fn a_zombie_that_writes_is_noticed() {
    is_noticed(Sabotage::SkipVerification, Rule::ZombiesFenced);
}

#[test]
fn a_transaction_that_does_not_end_is_noticed() {
    is_noticed(Sabotage::LoseMarkers, Rule::TransactionsEnd);
}

#[test]
fn a_group_that_does_not_settle_is_noticed() {
    is_noticed(Sabotage::LoseSyncs, Rule::GroupsSettle);
}

#[test]
fn a_lost_record_is_noticed() {
    is_noticed(Sabotage::LoseCommitted, Rule::NothingLost);
}
