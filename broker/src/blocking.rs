//! Running what waits for the disk where it may.

/// Runs `work` on a thread that serves no clients. On a runtime of one thread, as simulations have, it runs
/// at once: there the order of everything follows from the seed.
///
/// # Panics
/// If `work` does.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let runtime = tokio::runtime::Handle::current();
    if runtime.runtime_flavor() == tokio::runtime::RuntimeFlavor::CurrentThread {
        return work();
    }
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down, and whoever waits goes with it.
            Err(_) => std::future::pending().await,
        },
    }
}
