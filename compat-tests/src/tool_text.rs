//! What a tool prints, without what differs between any two runs: ids, times, addresses and directories.

/// Times of our own are before this.
const RECENTLY: i64 = 1_750_000_000_000;

/// A text in which each of `known` is replaced by what stands beside it, ids and times by what they are, and runs of
/// spaces by one.
pub fn normalized(text: &str, known: &[(&str, &str)]) -> String {
    let mut text = text.to_owned();
    for (value, stand_in) in known.iter().filter(|(value, _)| !value.is_empty()) {
        text = text.replace(value, stand_in);
    }
    let lines = text.lines().map(|line| {
        let mut shown = String::new();
        let mut word = String::new();
        for c in line.chars().chain(['\n']) {
            if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') {
                word.push(c);
                continue;
            }
            shown.push_str(&stand_in(&word));
            word.clear();
            match c {
                '\n' => {}
                c if c.is_whitespace() => {
                    if !shown.ends_with(' ') {
                        shown.push(' ');
                    }
                }
                c => shown.push(c),
            }
        }
        shown.trim().to_owned()
    });
    let lines: Vec<String> = lines.filter(|line| !line.is_empty()).collect();
    lines.join("\n")
}

/// A text in which the number behind each `label` is a stand-in.
pub fn without_number_of(text: &str, label: &str) -> String {
    let mut parts = text.split(label);
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        shown.push_str(label);
        shown.push('#');
        shown.push_str(part.trim_start_matches(|c: char| c.is_ascii_digit()));
    }
    shown
}

/// A text whose numbers are all the same: what is measured.
pub fn without_numbers(text: &str) -> String {
    let mut shown = String::new();
    for c in text.chars() {
        match c {
            '0'..='9' if shown.ends_with('#') => {}
            '.' if shown.ends_with('#') => {}
            '0'..='9' => shown.push('#'),
            c => shown.push(c),
        }
    }
    shown
}

/// The lines of a text in their alphabetical order.
pub fn sorted_lines(text: &str) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines.join("\n")
}

fn stand_in(word: &str) -> String {
    if let Some(at) = uuid_at(word) {
        return format!("{}<uuid>{}", &word[..at], &word[at + 36..]);
    }
    if word
        .parse::<i64>()
        .is_ok_and(|time| time > RECENTLY && time < 10 * RECENTLY)
    {
        return "<time>".to_owned();
    }
    let has = |of: fn(&char) -> bool| word.chars().any(|c| of(&c));
    let is_mixed = has(char::is_ascii_uppercase) && has(char::is_ascii_lowercase);
    match word.len() == 22 && is_mixed && !word.starts_with("--") {
        true => "<id>".to_owned(),
        false => word.to_owned(),
    }
}

/// Where a UUID in its long form begins.
fn uuid_at(word: &str) -> Option<usize> {
    (0..(word.len() + 1).saturating_sub(36)).find(|at| {
        word.get(*at..at + 36).is_some_and(|part| {
            part.chars().enumerate().all(|(index, c)| match index {
                8 | 13 | 18 | 23 => c == '-',
                _ => c.is_ascii_hexdigit(),
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_times_and_addresses_become_what_they_are() {
        let text = "Topic: t   TopicId: Zm9vYmFyLWJhei1xdXV4MQ\tat 127.0.0.1:9092\n\n \
                    consumer-1-0f8fad5b-d9cb-469f-a165-70867728950e 1796058437366 7";
        assert_eq!(
            normalized(text, &[("127.0.0.1:9092", "<address>")]),
            "Topic: t TopicId: <id> at <address>\nconsumer-1-<uuid> <time> 7"
        );
    }

    #[test]
    fn what_is_measured_is_a_number() {
        assert_eq!(
            without_numbers("50000 records, 12.5 ms (3)"),
            "# records, # ms (#)"
        );
    }
}
