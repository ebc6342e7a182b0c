//! What is known of a configuration key: its type, default, allowed values, and who may change it
//! when. The vocabulary of the tables in `broker_keys` and `topic_config`.

use std::fmt;

/// Type of a value, as DescribeConfigs numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigKind {
    /// `true` or `false`.
    Boolean,
    /// Any text.
    String,
    /// 32-bit integer.
    Int,
    /// 16-bit integer.
    Short,
    /// 64-bit integer.
    Long,
    /// Floating-point number.
    Double,
    /// Texts with commas between them.
    List,
    /// Name of a Java class.
    Class,
    /// Text that is never shown.
    Password,
}

impl ConfigKind {
    /// The number on the wire.
    pub const fn code(self) -> i8 {
        match self {
            Self::Boolean => 1,
            Self::String => 2,
            Self::Int => 3,
            Self::Short => 4,
            Self::Long => 5,
            Self::Double => 6,
            Self::List => 7,
            Self::Class => 8,
            Self::Password => 9,
        }
    }

    /// Name for documents and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Boolean => "boolean",
            Self::String => "string",
            Self::Int => "int",
            Self::Short => "short",
            Self::Long => "long",
            Self::Double => "double",
            Self::List => "list",
            Self::Class => "class",
            Self::Password => "password",
        }
    }
}

/// Which values a key takes beyond its type.
#[derive(Debug, Clone, Copy)]
pub enum Allowed {
    /// Every value of the type.
    Any,
    /// Integers from the first to the second, both included.
    Between(i64, i64),
    /// Numbers from the first to the second, both included.
    BetweenDouble(f64, f64),
    /// One of these, in this spelling.
    OneOf(&'static [&'static str]),
    /// A list of these, in any order.
    ListOf(&'static [&'static str]),
    /// A text that the function accepts; it says what is wrong otherwise.
    Checked(fn(&str) -> Result<(), String>, &'static str),
}

/// When a key may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpdateMode {
    /// At a start only.
    ReadOnly,
    /// At any time, for one broker.
    PerBroker,
    /// At any time, for one broker or for all of them.
    ClusterWide,
}

impl UpdateMode {
    /// Kafka's name for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReadOnly => "read-only",
            Self::PerBroker => "per-broker",
            Self::ClusterWide => "cluster-wide",
        }
    }
}

/// How much a key matters to most operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Importance {
    /// Look at it before a first start.
    High,
    /// Look at it when tuning.
    Medium,
    /// Leave it alone.
    Low,
}

impl Importance {
    /// Name for documents.
    pub const fn name(self) -> &'static str {
        match self {
            Self::High => "high",
            Self::Medium => "medium",
            Self::Low => "low",
        }
    }
}

/// One key.
#[derive(Debug, Clone, Copy)]
pub struct KeySpec {
    /// Name.
    pub name: &'static str,
    /// Type.
    pub kind: ConfigKind,
    /// Default; `None` for "not set".
    pub default: Option<&'static str>,
    /// Allowed values.
    pub allowed: Allowed,
    /// When it may change.
    pub update: UpdateMode,
    /// How much it matters.
    pub importance: Importance,
    /// What it does, in a sentence or two.
    pub doc: &'static str,
}

impl KeySpec {
    /// A key of `kind` with everything else at its plainest.
    pub(crate) const fn new(name: &'static str, kind: ConfigKind) -> Self {
        Self {
            name,
            kind,
            default: None,
            allowed: Allowed::Any,
            update: UpdateMode::ReadOnly,
            importance: Importance::Medium,
            doc: "",
        }
    }

    pub(crate) const fn default(mut self, default: &'static str) -> Self {
        self.default = Some(default);
        self
    }

    pub(crate) const fn at_least(mut self, least: i64) -> Self {
        self.allowed = Allowed::Between(least, i64::MAX);
        self
    }

    pub(crate) const fn allowed(mut self, allowed: Allowed) -> Self {
        self.allowed = allowed;
        self
    }

    pub(crate) const fn update(mut self, update: UpdateMode) -> Self {
        self.update = update;
        self
    }

    pub(crate) const fn importance(mut self, importance: Importance) -> Self {
        self.importance = importance;
        self
    }

    pub(crate) const fn doc(mut self, doc: &'static str) -> Self {
        self.doc = doc;
        self
    }

    /// Whether its value must never be shown.
    pub const fn is_sensitive(&self) -> bool {
        matches!(self.kind, ConfigKind::Password)
    }

    /// Checks `raw` and gives it in the form in which it is kept and shown: trimmed, booleans in
    /// lower case, list elements without the blanks around them.
    pub fn normalize(&self, raw: &str) -> Result<String, InvalidValue> {
        let text = raw.trim();
        let value = match self.kind {
            ConfigKind::Boolean => {
                let lower = text.to_ascii_lowercase();
                if lower != "true" && lower != "false" {
                    return Err(self.invalid(raw));
                }
                lower
            }
            ConfigKind::Int => self.integer(raw, i64::from(i32::MIN), i64::from(i32::MAX))?,
            ConfigKind::Short => self.integer(raw, i64::from(i16::MIN), i64::from(i16::MAX))?,
            ConfigKind::Long => self.integer(raw, i64::MIN, i64::MAX)?,
            ConfigKind::Double => {
                let number: f64 = text.parse().map_err(|_| self.invalid(raw))?;
                let fits = match self.allowed {
                    Allowed::BetweenDouble(least, most) => least <= number && number <= most,
                    _ => !number.is_nan(),
                };
                if !fits {
                    return Err(self.invalid(raw));
                }
                text.to_owned()
            }
            ConfigKind::List => {
                let elements: Vec<&str> = list_elements(text).collect();
                if let Allowed::ListOf(known) = self.allowed
                    && !elements.iter().all(|element| known.contains(element))
                {
                    return Err(self.invalid(raw));
                }
                elements.join(",")
            }
            ConfigKind::String | ConfigKind::Class | ConfigKind::Password => text.to_owned(),
        };
        if let Allowed::OneOf(known) = self.allowed
            && !known.contains(&value.as_str())
        {
            return Err(self.invalid(raw));
        }
        if let Allowed::Checked(check, _) = self.allowed {
            check(&value).map_err(|reason| InvalidValue {
                reason: Some(reason),
                ..self.invalid(raw)
            })?;
        }
        Ok(value)
    }

    fn integer(&self, raw: &str, kind_min: i64, kind_max: i64) -> Result<String, InvalidValue> {
        let number: i64 = raw.trim().parse().map_err(|_| self.invalid(raw))?;
        let (least, most) = match self.allowed {
            Allowed::Between(least, most) => (least.max(kind_min), most.min(kind_max)),
            _ => (kind_min, kind_max),
        };
        if number < least || number > most {
            return Err(self.invalid(raw));
        }
        Ok(number.to_string())
    }

    fn invalid(&self, raw: &str) -> InvalidValue {
        InvalidValue {
            key: self.name.to_owned(),
            value: if self.is_sensitive() {
                "(hidden)".to_owned()
            } else {
                raw.to_owned()
            },
            expected: self.expected(),
            reason: None,
        }
    }

    /// The allowed values in words.
    pub fn expected(&self) -> String {
        let kind = match self.kind {
            ConfigKind::Boolean => "true or false".to_owned(),
            ConfigKind::Int | ConfigKind::Short | ConfigKind::Long => {
                let bits = match self.kind {
                    ConfigKind::Short => 16,
                    ConfigKind::Int => 32,
                    _ => 64,
                };
                format!("a {bits}-bit integer")
            }
            ConfigKind::Double => "a number".to_owned(),
            ConfigKind::List => "a list with commas between its elements".to_owned(),
            ConfigKind::Class => "the name of a class".to_owned(),
            ConfigKind::String | ConfigKind::Password => "a text".to_owned(),
        };
        match self.allowed {
            Allowed::Any => kind,
            Allowed::Between(least, i64::MAX) => format!("{kind} of at least {least}"),
            Allowed::Between(least, most) => format!("{kind} from {least} to {most}"),
            Allowed::BetweenDouble(least, most) => format!("{kind} from {least} to {most}"),
            Allowed::OneOf(known) => format!("one of {}", known.join(", ")),
            Allowed::ListOf(known) => format!("a list of any of {}", known.join(", ")),
            Allowed::Checked(_, words) => words.to_owned(),
        }
    }
}

/// The elements of a list value: what stands between commas, trimmed, without empty ones.
pub fn list_elements(value: &str) -> impl Iterator<Item = &str> {
    value
        .split(',')
        .map(str::trim)
        .filter(|element| !element.is_empty())
}

/// A value that its key does not take.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct InvalidValue {
    /// The key.
    pub key: String,
    /// The value as given.
    pub value: String,
    /// The allowed values in words.
    pub expected: String,
    /// What exactly is wrong, if more can be said.
    pub reason: Option<String>,
}

impl fmt::Display for InvalidValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "invalid value \"{}\" for {}: expected {}",
            self.value, self.key, self.expected
        )?;
        match &self.reason {
            Some(reason) => write!(f, " ({reason})"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_checked_against_type_and_bounds() {
        let int = KeySpec::new("n", ConfigKind::Int).at_least(1);
        assert_eq!(int.normalize(" 7 ").as_deref(), Ok("7"));
        for bad in ["0", "-1", "x", "", "1.5", "2147483648", "1e3"] {
            assert!(int.normalize(bad).is_err(), "{bad}");
        }
        let long = KeySpec::new("n", ConfigKind::Long);
        assert_eq!(
            long.normalize("9223372036854775807").as_deref(),
            Ok("9223372036854775807")
        );
        assert!(long.normalize("9223372036854775808").is_err());
        let boolean = KeySpec::new("b", ConfigKind::Boolean);
        assert_eq!(boolean.normalize("TRUE").as_deref(), Ok("true"));
        assert!(boolean.normalize("yes").is_err());
        let double =
            KeySpec::new("d", ConfigKind::Double).allowed(Allowed::BetweenDouble(0.0, 1.0));
        assert!(double.normalize("0.5").is_ok());
        assert!(double.normalize("1.01").is_err());
        assert!(double.normalize("NaN").is_err());
    }

    #[test]
    fn lists_lose_their_blanks_and_unknown_elements_are_refused() {
        let list =
            KeySpec::new("l", ConfigKind::List).allowed(Allowed::ListOf(&["compact", "delete"]));
        assert_eq!(
            list.normalize(" compact , delete ").as_deref(),
            Ok("compact,delete")
        );
        assert_eq!(list.normalize("").as_deref(), Ok(""));
        let error = list.normalize("compress").expect_err("unknown");
        assert_eq!(
            error.to_string(),
            "invalid value \"compress\" for l: expected a list of any of compact, delete"
        );
    }

    #[test]
    fn a_refused_password_is_not_shown() {
        let key = KeySpec::new("p", ConfigKind::Password).allowed(Allowed::Checked(
            |_| Err("too short".to_owned()),
            "8 or more",
        ));
        let message = key.normalize("s3cret").expect_err("refused").to_string();
        assert!(!message.contains("s3cret"), "{message}");
    }
}
