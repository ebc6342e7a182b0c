//! Randomness of tests, which can be had again.

use rand::SeedableRng;
use rand::rngs::StdRng;

/// A generator from the seed in `ODRADEK_SEED`, or else from a new one; which, is printed, and so
/// stands above the message of a test that fails.
pub(crate) fn seeded() -> StdRng {
    let seed = match std::env::var("ODRADEK_SEED") {
        Ok(seed) => seed.parse().expect("ODRADEK_SEED is a number"),
        Err(_) => rand::random::<u64>(),
    };
    println!("replay with ODRADEK_SEED={seed}");
    StdRng::seed_from_u64(seed)
}
