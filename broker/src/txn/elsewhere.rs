//! Waiting for the answer of another broker no longer than that broker is the one to ask.
//!
//! One that stands still answers nothing and closes nothing. Once others lead what it led, its answer is of no use, and
//! whoever waits for it can ask them.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

/// How often to look whether it still is.
const LOOK_PERIOD: Duration = Duration::from_millis(50);

/// The answer, or `None` once `is_still_the_one` says no.
pub async fn while_it_counts<T>(
    answer: impl Future<Output = T>,
    is_still_the_one: impl Fn() -> bool,
) -> Option<T> {
    let mut answer = pin!(answer);
    loop {
        tokio::select! {
            biased;
            answer = &mut answer => return Some(answer),
            () = tokio::time::sleep(LOOK_PERIOD) => {
                if !is_still_the_one() {
                    return None;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_waited_for_until_it_is_of_no_use() {
        let answer = async {
            tokio::time::sleep(Duration::from_secs(9)).await;
            7
        };
        assert_eq!(while_it_counts(answer, || true).await, Some(7));
        let looks = Cell::new(0);
        let is_still_the_one = || {
            looks.set(looks.get() + 1);
            looks.get() < 5
        };
        let never = std::future::pending::<i32>();
        assert_eq!(while_it_counts(never, is_still_the_one).await, None);
    }
}
