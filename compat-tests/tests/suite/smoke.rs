//! The harness itself, and the least that a broker does.

use anyhow::Result;
use compat_tests::broker::Broker;

#[test]
fn a_broker_answers_stops_on_sigterm_and_starts_again() -> Result<()> {
    let mut broker = Broker::start()?;
    let before = broker.connect()?.metadata_of_everything()?;
    broker.restart()?;
    let after = broker.connect()?.metadata_of_everything()?;
    assert_eq!(before.cluster_id, after.cluster_id);
    broker.kill9()?;
    broker.start_again()?;
    assert_eq!(
        before.cluster_id,
        broker.connect()?.metadata_of_everything()?.cluster_id
    );
    Ok(())
}
