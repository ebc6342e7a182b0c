//! Nodes that do not belong to a cluster, or that disagree with it: refused with a reason, and the cluster serves on.

use anyhow::{Context, Result, ensure};
use compat_tests::cluster::{Cluster, NodeNumber, Product};

use crate::beside;
use crate::shared::{PATIENCE, create, ends_with_an_error, says, serves, to_leader};

const THREE: [NodeNumber; 3] = [1, 2, 3];

/// Three nodes that run, and a fourth that is prepared as the test wants it.
fn three_and(options: compat_tests::cluster::ClusterOptions) -> Result<Cluster> {
    let mut cluster = options.prepare()?;
    for number in THREE {
        cluster.launch(number)?;
    }
    cluster.await_members_among(&THREE, PATIENCE)?;
    Ok(cluster)
}

fn four() -> compat_tests::cluster::ClusterOptions {
    Cluster::options(Product::Odradek, 4).voters(3)
}

#[test]
fn a_second_node_with_one_id_is_refused_whether_the_first_runs_or_not() -> Result<()> {
    let _beside = beside();
    for roles in ["broker,controller", "broker"] {
        let options = four()
            .set_of(4, "node.id", 3)
            .set_of(4, "process.roles", roles);
        let mut cluster = three_and(options)?;
        let topic = create(
            &mut cluster,
            "one-id",
            &[&[1, 2, 3], &[2, 3, 1], &[3, 1, 2]],
        )?;
        let mut records = 0;
        serves(&mut cluster, &THREE, &topic, 3, &mut records)?;

        cluster.launch(4)?;
        ends_with_an_error(&mut cluster, 4)?;
        let reasons = [
            "two nodes with node.id 3",
            "data directory",
            "node 3 is a voter",
        ];
        says(&mut cluster, 4, &reasons)?;
        serves(&mut cluster, &THREE, &topic, 3, &mut records)?;

        cluster.node(3)?.kill9()?;
        cluster.launch(4)?;
        ends_with_an_error(&mut cluster, 4)?;
        serves(&mut cluster, &[1, 2], &topic, 3, &mut records)?;
        cluster.launch(3)?;
        cluster.await_members_among(&THREE, PATIENCE)?;
        serves(&mut cluster, &THREE, &topic, 3, &mut records)?;
    }
    Ok(())
}

/// All four begin at the same time, and nobody knows yet who is who.
#[test]
fn a_second_node_with_one_id_is_refused_while_the_cluster_is_founded() -> Result<()> {
    let _beside = beside();
    for first in [4, 3] {
        let mut cluster = four().set_of(4, "node.id", 3).prepare()?;
        cluster.launch(first)?;
        for number in [1, 2, 7 - first] {
            cluster.launch(number)?;
        }
        ends_with_an_error(&mut cluster, 4)?;
        says(
            &mut cluster,
            4,
            &["two nodes with node.id 3", "data directory"],
        )?;
        cluster.await_members_among(&THREE, PATIENCE)?;
        let topic = create(&mut cluster, "one-id", &[&[1, 2, 3]])?;
        let mut records = 0;
        serves(&mut cluster, &THREE, &topic, 1, &mut records)?;
    }
    Ok(())
}

/// Rewrites a line of a node's `meta.properties`.
fn change_meta(cluster: &mut Cluster, node: NodeNumber, key: &str, value: &str) -> Result<String> {
    let path = cluster.node(node)?.data_dir().join("meta.properties");
    let text = std::fs::read_to_string(&path)?;
    let mut before = None;
    let changed: String = text
        .lines()
        .map(|line| match line.split_once('=') {
            Some((found, old)) if found == key => {
                before = Some(old.to_owned());
                format!("{key}={value}\n")
            }
            _ => format!("{line}\n"),
        })
        .collect();
    std::fs::write(&path, changed)?;
    before.with_context(|| format!("no {key} in {text}"))
}

#[test]
fn a_directory_of_another_cluster_is_refused_and_taken_when_it_is_the_right_one() -> Result<()> {
    let _beside = beside();
    let mut cluster = three_and(four())?;
    let topic = create(&mut cluster, "whose", &[&[1, 2, 3], &[2, 3, 1], &[3, 1, 2]])?;
    let mut records = 0;
    serves(&mut cluster, &THREE, &topic, 3, &mut records)?;
    cluster.await_in_sync(PATIENCE)?;

    cluster.node(3)?.terminate(PATIENCE)?;
    let own = change_meta(&mut cluster, 3, "cluster.id", "AnotherClustersIdAAAAA")?;
    cluster.launch(3)?;
    says(&mut cluster, 3, &["AnotherClustersIdAAAAA"])?;
    ends_with_an_error(&mut cluster, 3)?;
    serves(&mut cluster, &[1, 2], &topic, 3, &mut records)?;

    change_meta(&mut cluster, 3, "cluster.id", &own)?;
    cluster.launch(3)?;
    cluster.await_members_among(&THREE, PATIENCE)?;
    cluster.await_in_sync(PATIENCE)?;
    serves(&mut cluster, &THREE, &topic, 3, &mut records)
}

#[test]
fn a_voter_that_names_other_voters_is_refused() -> Result<()> {
    let _beside = beside();
    let mut cluster = three_and(four())?;
    let topic = create(
        &mut cluster,
        "voters",
        &[&[1, 2, 3], &[2, 3, 1], &[3, 1, 2]],
    )?;
    let mut records = 0;
    serves(&mut cluster, &THREE, &topic, 3, &mut records)?;
    cluster.await_in_sync(PATIENCE)?;
    let mut named = Vec::new();
    for number in [1, 3, 4] {
        let address = cluster.node(number)?.addresses().controller;
        named.push(format!("{number}@{address}"));
    }
    cluster.node(3)?.terminate(PATIENCE)?;
    let right = std::fs::read_to_string(cluster.node(3)?.property_file())?;
    let right = right
        .lines()
        .find_map(|line| line.strip_prefix("controller.quorum.voters="))
        .context("no voters in the property file")?
        .to_owned();
    let key = "controller.quorum.voters";
    cluster.node(3)?.set_for_next_start(key, named.join(","))?;
    cluster.launch(3)?;
    ends_with_an_error(&mut cluster, 3)?;
    says(&mut cluster, 3, &["voters"])?;
    serves(&mut cluster, &[1, 2], &topic, 3, &mut records)?;
    cluster.node(3)?.set_for_next_start(key, right)?;
    cluster.launch(3)?;
    cluster.await_members_among(&THREE, PATIENCE)?;
    serves(&mut cluster, &THREE, &topic, 3, &mut records)
}

/// Two agree and one does not, and none has been in a cluster before: the two found it without the third, which says
/// what it waits for.
#[test]
fn voters_that_disagree_do_not_found_two_clusters() -> Result<()> {
    let _beside = beside();
    let mut cluster = Cluster::options(Product::Odradek, 4).voters(3).prepare()?;
    let mut named = Vec::new();
    for number in [2, 3, 4] {
        let address = cluster.node(number)?.addresses().controller;
        named.push(format!("{number}@{address}"));
    }
    let voters = named.join(",");
    cluster
        .node(3)?
        .set_for_next_start("controller.quorum.voters", voters)?;
    for number in [3, 2, 1] {
        cluster.launch(number)?;
    }
    says(&mut cluster, 3, &["names the voters"])?;
    cluster.await_members_among(&[1, 2], PATIENCE)?;
    ensure!(
        cluster.ask(3).is_err(),
        "node 3 serves clients, of whichever cluster"
    );
    let topic = create(&mut cluster, "two", &[&[1, 2]])?;
    let mut records = 0;
    serves(&mut cluster, &[1, 2], &topic, 1, &mut records)
}

/// The node is known under an address that leads nowhere: it cannot follow the metadata, and it says so.
#[test]
fn a_broker_whose_advertised_listener_leads_nowhere_stops_nobody() -> Result<()> {
    let _beside = beside();
    let mut options = four().set_of(4, "process.roles", "broker");
    // Discard, on the broker's own host: refused at once. And an address that answers nothing at all.
    for nowhere in ["127.0.0.1:9", "192.0.2.1:9092"] {
        options = options.set_of(4, "advertised.listeners", format!("PLAINTEXT://{nowhere}"));
        let mut cluster = three_and(options.clone())?;
        let topic = create(&mut cluster, "reach", &[&[1, 2, 3], &[2, 3, 1], &[3, 1, 2]])?;
        let mut records = 0;
        serves(&mut cluster, &THREE, &topic, 3, &mut records)?;
        cluster.launch(4)?;
        says(
            &mut cluster,
            4,
            &["waiting for the metadata of the cluster"],
        )?;
        // Whoever leads the metadata says where it cannot reach the node.
        let told = THREE
            .iter()
            .any(|&node| says(&mut cluster, node, &[nowhere]).is_ok());
        ensure!(
            told,
            "nobody says that {nowhere} does not answer\n{}",
            cluster.logs()
        );
        serves(&mut cluster, &THREE, &topic, 3, &mut records)?;
        // A voter that restarts meanwhile finds its way back.
        cluster.node(2)?.kill9()?;
        cluster.launch(2)?;
        cluster.await_members_among(&THREE, PATIENCE)?;
        serves(&mut cluster, &THREE, &topic, 3, &mut records)?;
        let (leader, _) = to_leader(&mut cluster, &THREE, &topic, 0)?;
        ensure!(THREE.contains(&leader));
    }
    Ok(())
}
