//! ListTransactions (KIP-664, KIP-994, KIP-1152): the transactional ids coordinated here.

use odradek_protocol::ids::ProducerId;
use odradek_protocol::message;
use odradek_protocol::messages::list_transactions_response::TransactionState;
use odradek_protocol::messages::{ListTransactionsRequest, ListTransactionsResponse, StrBytes};
use regex::{Regex, RegexBuilder};

use super::Reply;
use crate::context::RequestContext;
use crate::groups::consumer::regexes::MAX_TEXT_BYTES;
use crate::txn::error::TxnError;
use crate::txn::messages::{ListRequest, Listing};
use crate::txn::records::TxnState;
use crate::txn::service::Service;

/// States that Kafka has, and in which no id is ever seen.
const NEVER_SEEN: [&str; 2] = ["Dead", "PrepareEpochFence"];
/// Most bytes that a compiled pattern may take.
const PATTERN_BYTES: usize = 1 << 20;

/// Answers ListTransactions.
pub async fn handle(
    context: RequestContext,
    request: ListTransactionsRequest,
) -> Reply<ListTransactionsResponse> {
    let (states, unknown_state_filters) = states_of(&request.state_filters);
    let pattern = request.transactional_id_pattern.as_deref();
    let asked = ListRequest {
        states,
        producer_ids: ids_of(&request.producer_id_filters),
        open_for_ms: request.duration_filter,
    };
    let mut response = match list(&context.broker.transactions, &asked, pattern).await {
        Ok(listed) => message!(ListTransactionsResponse {
            transaction_states: listed.iter().map(to_state).collect(),
        }),
        Err(error) => message!(ListTransactionsResponse {
            error_code: error.code().code(),
        }),
    };
    if response.error_code == 0 {
        response.unknown_state_filters = unknown_state_filters;
    }
    Reply::Now(response)
}

async fn list(
    transactions: &Service,
    asked: &ListRequest,
    pattern: Option<&str>,
) -> Result<Vec<Listing>, TxnError> {
    let pattern = compile(pattern)?;
    let mut listed = transactions.list(asked).await?;
    if let Some(pattern) = pattern {
        listed.retain(|listing| pattern.is_match(listing.id.as_str()));
    }
    Ok(listed)
}

/// The pattern of whole ids; none if there is nothing to match.
fn compile(pattern: Option<&str>) -> Result<Option<Regex>, TxnError> {
    let Some(pattern) = pattern.filter(|pattern| !pattern.is_empty()) else {
        return Ok(None);
    };
    if pattern.len() > MAX_TEXT_BYTES {
        return Err(TxnError::InvalidPattern);
    }
    let invalid = |_| TxnError::InvalidPattern;
    // Whatever is wrong with it alone must not be put right by what is around it.
    let alone = RegexBuilder::new(pattern).size_limit(PATTERN_BYTES).build();
    alone.map_err(invalid)?;
    let whole = RegexBuilder::new(&format!("^(?:{pattern})$"))
        .size_limit(PATTERN_BYTES)
        .build();
    whole.map(Some).map_err(invalid)
}

/// The states to filter by, if by any, and the names that are none.
fn states_of(names: &[StrBytes]) -> (Option<Vec<TxnState>>, Vec<StrBytes>) {
    let mut states = (!names.is_empty()).then(Vec::new);
    let mut unknown = Vec::new();
    for name in names {
        let known = TxnState::ALL
            .into_iter()
            .find(|state| state.name() == name.as_str());
        if known.is_some() || NEVER_SEEN.contains(&name.as_str()) {
            if let Some(states) = &mut states {
                states.extend(known);
            }
        } else {
            unknown.push(name.clone());
        }
    }
    (states, unknown)
}

fn ids_of(ids: &[i64]) -> Vec<ProducerId> {
    ids.iter().copied().map(ProducerId::new).collect()
}

fn to_state(listing: &Listing) -> TransactionState {
    message!(TransactionState {
        transactional_id: StrBytes::from(listing.id.as_str()),
        producer_id: listing.producer_id.get(),
        transaction_state: StrBytes::from(listing.state.name()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_whole_ids_and_a_bad_one_is_refused() {
        let matches = |pattern, id| {
            let compiled = compile(Some(pattern)).expect("valid");
            compiled.is_none_or(|compiled| compiled.is_match(id))
        };
        assert!(matches("a.*", "abc") && !matches("b", "abc") && matches("", "abc"));
        assert!(matches("a|abc", "abc"));
        for bad in ["(", ")", "a)(", "*"] {
            assert_eq!(
                compile(Some(bad)).err(),
                Some(TxnError::InvalidPattern),
                "{bad}"
            );
        }
    }

    #[test]
    fn names_that_are_no_state_are_told_and_match_nothing() {
        let names = |names: &[&str]| names.iter().map(|name| StrBytes::from(*name)).collect();
        let of =
            |given: &[&str]| states_of(&Vec::<StrBytes>::from_iter::<Vec<StrBytes>>(names(given)));
        assert_eq!(of(&[]), (None, vec![]));
        assert_eq!(of(&["Ongoing"]).0, Some(vec![TxnState::Ongoing]));
        assert_eq!(of(&["Dead"]).0, Some(vec![]));
        assert_eq!(of(&["Nonsense"]), (Some(vec![]), names(&["Nonsense"])));
    }
}
