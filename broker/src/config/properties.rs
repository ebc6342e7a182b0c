//! Reader of Java's properties syntax, the syntax of `server.properties`, with the line of every
//! key.
//!
//! `#` and `!` start comments; `=`, `:` or blanks end a key; a backslash escapes the character after
//! it, `\uXXXX` is a UTF-16 code unit, and a backslash at the end of a line joins the next one. The
//! file is read as UTF-8. When a key comes twice the later one counts, as in Java.

/// One key and its value, unescaped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Property {
    /// The key.
    pub key: String,
    /// The value; empty if none was given.
    pub value: String,
    /// Line, counted from 1, on which the key starts.
    pub line: usize,
}

/// A `\u` that four hexadecimal digits do not follow, or that is no character.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: \\u must be followed by four hexadecimal digits that name a character")]
pub struct SyntaxError {
    /// Line, counted from 1.
    pub line: usize,
}

/// Reads every property, in the order of the text.
pub fn parse(text: &str) -> Result<Vec<Property>, SyntaxError> {
    logical_lines(text)
        .into_iter()
        .map(|(line, content)| property(&content, line))
        .collect()
}

/// Joins continued lines, drops comments and blank lines, and cuts leading blanks.
fn logical_lines(text: &str) -> Vec<(usize, String)> {
    let mut lines = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (index, raw) in split_lines(text).enumerate() {
        let content = raw.trim_start_matches(is_blank);
        let (line, mut joined) = match open.take() {
            Some(started) => started,
            None if content.is_empty() || content.starts_with(['#', '!']) => continue,
            None => (index + 1, String::new()),
        };
        let trailing = content.len() - content.trim_end_matches('\\').len();
        if trailing % 2 == 1 {
            joined.push_str(&content[..content.len() - 1]);
            open = Some((line, joined));
        } else {
            joined.push_str(content);
            lines.push((line, joined));
        }
    }
    lines.extend(open);
    lines
}

/// Lines end with LF, CR or both.
fn split_lines(text: &str) -> impl Iterator<Item = &str> {
    text.split('\n')
        .map(|line| line.strip_suffix('\r').unwrap_or(line))
        .flat_map(|line| line.split('\r'))
}

fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\x0c')
}

fn property(content: &str, line: usize) -> Result<Property, SyntaxError> {
    let mut escaped = false;
    let end = content
        .char_indices()
        .find(|&(_, c)| {
            if escaped {
                escaped = false;
                return false;
            }
            escaped = c == '\\';
            is_blank(c) || c == '=' || c == ':'
        })
        .map_or(content.len(), |(at, _)| at);
    let (key, rest) = content.split_at(end);
    let rest = rest.trim_start_matches(is_blank);
    let rest = rest.strip_prefix(['=', ':']).unwrap_or(rest);
    Ok(Property {
        key: unescape(key, line)?,
        value: unescape(rest.trim_start_matches(is_blank), line)?,
        line,
    })
}

fn unescape(text: &str, line: usize) -> Result<String, SyntaxError> {
    let mut units: Vec<u16> = Vec::with_capacity(text.len());
    let mut chars = text.chars();
    let mut buffer = [0; 2];
    while let Some(c) = chars.next() {
        let plain = match c {
            '\\' => match chars.next() {
                Some('u') => {
                    let digits: String = chars.by_ref().take(4).collect();
                    let valid =
                        digits.len() == 4 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
                    let unit = u16::from_str_radix(&digits, 16).ok().filter(|_| valid);
                    units.push(unit.ok_or(SyntaxError { line })?);
                    continue;
                }
                Some('t') => '\t',
                Some('n') => '\n',
                Some('r') => '\r',
                Some('f') => '\x0c',
                Some(other) => other,
                None => continue,
            },
            other => other,
        };
        units.extend_from_slice(plain.encode_utf16(&mut buffer));
    }
    String::from_utf16(&units).map_err(|_| SyntaxError { line })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<(String, String, usize)> {
        parse(text)
            .expect("the text is well formed")
            .into_iter()
            .map(|property| (property.key, property.value, property.line))
            .collect()
    }

    fn pair(key: &str, value: &str, line: usize) -> (String, String, usize) {
        (key.to_owned(), value.to_owned(), line)
    }

    #[test]
    fn keys_end_at_an_equals_sign_a_colon_or_a_blank() {
        assert_eq!(
            pairs("a=1\nb:2\nc 3\n d = 4 \ne\nf==\n"),
            [
                pair("a", "1", 1),
                pair("b", "2", 2),
                pair("c", "3", 3),
                pair("d", "4 ", 4),
                pair("e", "", 5),
                pair("f", "=", 6),
            ]
        );
    }

    #[test]
    fn comments_and_blank_lines_are_skipped_but_counted() {
        assert_eq!(
            pairs("# x=1\r\n\r\n  ! y\r\nlisteners=PLAINTEXT://:9092\r\n"),
            [pair("listeners", "PLAINTEXT://:9092", 4)]
        );
    }

    #[test]
    fn a_backslash_at_the_end_of_a_line_joins_the_next_and_two_do_not() {
        assert_eq!(
            pairs("a=1,\\\n   2,\\\n   3\nb=c\\\\\nd=e"),
            [
                pair("a", "1,2,3", 1),
                pair("b", "c\\", 4),
                pair("d", "e", 5)
            ]
        );
        assert_eq!(pairs("a=1\\"), [pair("a", "1", 1)]);
    }

    #[test]
    fn escapes_are_undone_in_keys_and_values() {
        assert_eq!(
            pairs("a\\=b\\ c=\\t\\u00e4\\ud83d\\ude00\\q"),
            [pair("a=b c", "\tä😀q", 1)]
        );
        assert_eq!(parse("a=1\nb=\\u12"), Err(SyntaxError { line: 2 }));
        assert_eq!(parse("b=\\ud83d"), Err(SyntaxError { line: 1 }));
        assert_eq!(parse("b=\\u+123"), Err(SyntaxError { line: 1 }));
    }

    #[test]
    fn any_bytes_at_all_are_read_or_refused_without_a_panic() {
        for text in [
            "\\",
            "=",
            ":\\",
            "\\u",
            "\u{feff}a=b",
            "a\\\n",
            "\\\n\\\n",
            "\r\r\r",
        ] {
            let _ = parse(text);
        }
    }
}
