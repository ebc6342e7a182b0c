//! What is broken on purpose, to see that the rules notice.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sabotage {
    /// Every member of a classic group is told that everything is its own.
    ShareAssignments,
    /// A new leader lacks the last of what was committed.
    LoseCommitted,
    /// Commits that are refused are acknowledged.
    AcknowledgeRefused,
    /// One partition is told the opposite of what was decided.
    TwistMarkers,
    /// Consumers are not told which transactions were aborted.
    HideAborted,
    /// Consumers are given everything that is committed, decided or not.
    IgnoreOpen,
    /// No partition asks about transactions.
    SkipVerification,
    /// No partition is told of the end of a transaction.
    LoseMarkers,
    /// Nobody is given an assignment.
    LoseSyncs,
}
