use std::borrow::Cow;
use std::ffi::OsString;
use std::fmt;
use std::marker::PhantomData;
use std::os::unix::ffi::OsStringExt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};

use super::question::{DecodeError, decode};
use crate::model::Environment;

/// The most arguments, and the most environment entries, of a request. Linux counts nine bytes at least
/// for each in its 6 MiB for both together, so no exec has as many.
const MAX_STRINGS: usize = 1 << 20;

/// What a wrapper asks: may this process execute that?
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EscalateRequest {
    /// The program; may be relative to `workdir`.
    pub file: OsString,
    /// Its arguments, from argument zero on; may be empty.
    pub argv: Vec<OsString>,
    /// The process's working directory: absolute.
    pub workdir: OsString,
    /// The process's environment, without the variables of the session.
    pub env: Environment,
    /// Whether the wrapper reads a [`WaitNotice`](super::WaitNotice) before the answer.
    pub notices: bool,
}

impl EscalateRequest {
    /// Reads a request.
    ///
    /// # Errors
    /// JSON of another shape, a NUL byte, an empty `file`, a `workdir` that isn't absolute.
    pub fn decode(json: &[u8]) -> Result<Self, DecodeError> {
        let encoded: EncodedRequest<'_> = decode("EscalateRequest", json)?;
        let invalid = |problem: &str| DecodeError {
            message: "EscalateRequest",
            problem: problem.to_owned(),
        };
        let request = match encoded.raw {
            Some(raw) => Self {
                file: raw.file.into_os_string(),
                argv: raw.argv.0.into_iter().map(Raw::into_os_string).collect(),
                workdir: raw.workdir.into_os_string(),
                env: Environment(raw.env.0.into_iter().map(Raw::into_os_string).collect()),
                notices: encoded.notices,
            },
            None => Self {
                file: encoded.file.into_owned().into(),
                argv: encoded.argv.0.into_iter().map(OsString::from).collect(),
                workdir: encoded.workdir.into_owned().into(),
                env: Environment(encoded.env.0),
                notices: encoded.notices,
            },
        };
        let has_nul = |string: &OsString| string.as_encoded_bytes().contains(&0);
        if has_nul(&request.file)
            || has_nul(&request.workdir)
            || request.argv.iter().chain(&request.env.0).any(has_nul)
        {
            return Err(invalid("a NUL byte in a string"));
        }
        if request.file.is_empty() {
            return Err(invalid("`file` is empty"));
        }
        if !request.workdir.as_encoded_bytes().starts_with(b"/") {
            return Err(invalid("`workdir` is not absolute"));
        }
        Ok(request)
    }
}

#[derive(Deserialize)]
struct EncodedRequest<'a> {
    #[serde(borrow)]
    file: Cow<'a, str>,
    argv: Bounded<String>,
    #[serde(borrow)]
    workdir: Cow<'a, str>,
    env: EntryList,
    #[serde(default)]
    raw: Option<RawRequest>,
    #[serde(default)]
    notices: bool,
}

/// A JSON object as entries `NAME=value`, in its order and with what repeats.
struct EntryList(Vec<OsString>);

impl<'de> Deserialize<'de> for EntryList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntryVisitor;
        impl<'de> Visitor<'de> for EntryVisitor {
            type Value = EntryList;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object of names and values")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<EntryList, A::Error> {
                let mut entries = Vec::new();
                while let Some((mut entry, value)) = map.next_entry::<String, Cow<'de, str>>()? {
                    if entries.len() == MAX_STRINGS {
                        return Err(too_many());
                    }
                    entry.reserve_exact(1 + value.len());
                    entry.push('=');
                    entry.push_str(&value);
                    entries.push(entry.into());
                }
                Ok(EntryList(entries))
            }
        }
        deserializer.deserialize_map(EntryVisitor)
    }
}

fn too_many<E: serde::de::Error>() -> E {
    E::custom(format_args!("more than {MAX_STRINGS} strings"))
}

/// A list of no more than [`MAX_STRINGS`]: a list in memory can be many times as long as its text.
struct Bounded<T>(Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Bounded<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ListVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for ListVisitor<T> {
            type Value = Bounded<T>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a list of strings")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Bounded<T>, A::Error> {
                let mut strings = Vec::new();
                while let Some(string) = list.next_element()? {
                    if strings.len() == MAX_STRINGS {
                        return Err(too_many());
                    }
                    strings.push(string);
                }
                Ok(Bounded(strings))
            }
        }
        deserializer.deserialize_seq(ListVisitor(PhantomData))
    }
}

/// The bytes of a request of which some aren't UTF-8, each string as base64 (RFC 4648, padded).
#[derive(Deserialize)]
struct RawRequest {
    file: Raw,
    argv: Bounded<Raw>,
    workdir: Raw,
    /// Whole entries, in order.
    env: Bounded<Raw>,
}

struct Raw(Vec<u8>);

impl Raw {
    fn into_os_string(self) -> OsString {
        OsString::from_vec(self.0)
    }
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        let bytes = STANDARD
            .decode(text.as_bytes())
            .map_err(serde::de::Error::custom)?;
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{
        Action, EscalateResponse, PREFIX, RequestFields, SuperExecMessage, SuperExecResult,
        WaitNotice, encode,
    };

    fn round_trip(fields: &RequestFields<'_>) -> (serde_json::Value, EscalateRequest) {
        let frame = encode(fields).unwrap();
        let json = serde_json::from_slice(&frame[PREFIX..]).unwrap();
        (json, EscalateRequest::decode(&frame[PREFIX..]).unwrap())
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_that_an_exec_can_have_survive(
            file in "[^\\x00]{1,20}",
            argv in proptest::collection::vec(proptest::collection::vec(1_u8.., 0..20), 0..5),
            env in proptest::collection::vec(proptest::collection::vec(1_u8.., 0..20), 0..5),
        ) {
            let (_, request) = round_trip(&RequestFields {
                file: file.as_bytes(),
                argv: argv.iter().map(Vec::as_slice).collect(),
                workdir: b"/",
                env: env.iter().map(Vec::as_slice).collect(),
                notices: false,
            });
            let bytes = |strings: Vec<OsString>| -> Vec<_> {
                strings.into_iter().map(OsString::into_vec).collect()
            };
            proptest::prop_assert_eq!(bytes(request.argv), argv);
            proptest::prop_assert_eq!(bytes(request.env.0), env);
            proptest::prop_assert_eq!(request.file.into_vec(), file.into_bytes());
        }

        #[test]
        fn whatever_a_peer_sends_is_an_error_at_worst(
            json in proptest::collection::vec(proptest::num::u8::ANY, 0..200),
            text in r#"[\[\]{}":,a-z0-9\\\\]{0,80}"#,
        ) {
            let _ = EscalateRequest::decode(&json);
            let _ = EscalateRequest::decode(text.as_bytes());
            let _ = decode::<SuperExecMessage>("SuperExecMessage", text.as_bytes());
        }
    }

    #[test]
    fn text_is_plain_json() {
        let (json, request) = round_trip(&RequestFields {
            file: b"/usr/bin/git",
            argv: vec![b"git", b"push"],
            workdir: b"/src",
            env: vec![b"HOME=/root", b"EQ=a=b"],
            notices: false,
        });
        let expected = serde_json::json!({
            "file": "/usr/bin/git", "argv": ["git", "push"], "workdir": "/src",
            "env": {"HOME": "/root", "EQ": "a=b"},
        });
        assert_eq!(json, expected);
        assert_eq!(request.env.0, ["HOME=/root", "EQ=a=b"]);
    }

    #[test]
    fn bytes_survive_beside_their_rendering() {
        let (json, request) = round_trip(&RequestFields {
            file: b"/bin/\xff",
            argv: vec![b"\xfe\x80"],
            workdir: b"/",
            env: vec![b"A=\xff", b"NO_EQUALS_SIGN"],
            notices: false,
        });
        assert_eq!(json["argv"][0], "\u{fffd}\u{fffd}");
        assert_eq!(request.file.into_vec(), b"/bin/\xff");
        assert_eq!(request.argv[0].as_encoded_bytes(), b"\xfe\x80");
        assert_eq!(request.env.0[0].as_encoded_bytes(), b"A=\xff");
        assert_eq!(request.env.0[1], "NO_EQUALS_SIGN");
    }

    #[test]
    fn an_entry_that_no_object_can_have_survives_beside_text() {
        for entry in ["NO_EQUALS_SIGN", "=ONLY_BEFORE_THE_NAME", "=", ""] {
            let (json, request) = round_trip(&RequestFields {
                file: b"/bin/x",
                argv: vec![b"x"],
                workdir: b"/",
                env: vec![b"A=1", entry.as_bytes()],
                notices: false,
            });
            assert!(json["raw"].is_object(), "{entry:?}: {json}");
            assert_eq!(request.env.0, ["A=1", entry]);
        }
    }

    #[test]
    fn the_environment_keeps_its_order_and_what_repeats() {
        let (_, request) = round_trip(&RequestFields {
            file: b"/bin/x",
            argv: vec![],
            workdir: b"/",
            env: vec![b"Z=1", b"A=2", b"Z=3", b"=odd=4"],
            notices: false,
        });
        assert_eq!(request.env.0, ["Z=1", "A=2", "Z=3", "=odd=4"]);
        assert!(request.argv.is_empty());
    }

    #[test]
    fn requests_that_cannot_be_executed_are_refused() {
        let cases = [
            (
                r#"{"argv":[],"workdir":"/","env":{}}"#,
                "missing field `file`",
            ),
            (
                r#"{"file":"","argv":[],"workdir":"/","env":{}}"#,
                "`file` is empty",
            ),
            (
                r#"{"file":"x","argv":[],"workdir":"src","env":{}}"#,
                "not absolute",
            ),
            (
                r#"{"file":"x\u0000","argv":[],"workdir":"/","env":{}}"#,
                "NUL",
            ),
            (
                r#"{"file":"x","argv":"x","workdir":"/","env":{}}"#,
                "a list of strings",
            ),
            (
                r#"{"file":"x","argv":[],"workdir":"/","env":[]}"#,
                "an object",
            ),
            ("{", "EOF"),
        ];
        for (json, problem) in cases {
            let error = EscalateRequest::decode(json.as_bytes()).unwrap_err();
            assert!(error.to_string().contains(problem), "{json}: {error}");
        }
    }

    #[test]
    fn lists_that_no_exec_can_have_are_refused_early() {
        let strings = vec![r#""""#; MAX_STRINGS + 1].join(",");
        let entries = vec![r#""":"""#; MAX_STRINGS + 1].join(",");
        // Nothing behind them has been looked at, or it would be what is wrong.
        for json in [
            format!(r#"{{"file":"x","argv":[{strings},?"#),
            format!(r#"{{"file":"x","argv":[],"workdir":"/","env":{{{entries},?"#),
            format!(r#"{{"raw":{{"file":"eA==","argv":[],"workdir":"Lw==","env":[{strings},?"#),
        ] {
            let error = EscalateRequest::decode(json.as_bytes()).unwrap_err();
            assert!(
                error.to_string().contains("more than 1048576 strings"),
                "{error}"
            );
        }
    }

    #[test]
    fn notices_are_asked_for_by_a_field_that_may_be_missing() {
        let fields = |notices| RequestFields {
            file: b"/bin/x",
            argv: vec![],
            workdir: b"/",
            env: vec![],
            notices,
        };
        let (json, request) = round_trip(&fields(true));
        assert_eq!(json["notices"], true);
        assert!(request.notices);
        let (json, request) = round_trip(&fields(false));
        assert_eq!(json.get("notices"), None);
        assert!(!request.notices);
        // Neither frame is taken for the other.
        let notice = br#"{"waiting":"for ada"}"#;
        assert!(decode::<EscalateResponse>("EscalateResponse", notice).is_err());
        let notice: WaitNotice = decode("WaitNotice", notice).unwrap();
        assert_eq!(notice.waiting, "for ada");
        assert!(decode::<WaitNotice>("WaitNotice", br#"{"action":"Run"}"#).is_err());
    }

    #[test]
    fn unknown_fields_are_passed_over() {
        let json = r#"{"file":"x","argv":[],"workdir":"/","env":{},"later":{"a":[1]}}"#;
        assert!(EscalateRequest::decode(json.as_bytes()).is_ok());
        let result: SuperExecResult =
            decode("SuperExecResult", br#"{"exit_code":3,"new":1}"#).unwrap();
        assert_eq!(result.exit_code, 3);
    }

    #[test]
    fn responses_have_the_protocols_form() {
        let cases = [
            (Action::Run, r#"{"action":"Run"}"#),
            (Action::Escalate, r#"{"action":"Escalate"}"#),
            (
                Action::Deny {
                    reason: Some("no".into()),
                },
                r#"{"action":{"Deny":{"reason":"no"}}}"#,
            ),
            (
                Action::Deny { reason: None },
                r#"{"action":{"Deny":{"reason":null}}}"#,
            ),
        ];
        for (action, json) in cases {
            let response = EscalateResponse {
                action,
                notices: None,
            };
            assert_eq!(serde_json::to_string(&response).unwrap(), json);
            let decoded: EscalateResponse = decode("EscalateResponse", json.as_bytes()).unwrap();
            assert_eq!(decoded, response);
        }
        let message = SuperExecMessage {
            fds: vec![0, 1, 2],
            context: None,
        };
        assert_eq!(
            serde_json::to_string(&message).unwrap(),
            r#"{"fds":[0,1,2]}"#
        );
        let result = SuperExecResult {
            exit_code: 42,
            ..SuperExecResult::default()
        };
        assert_eq!(
            serde_json::to_string(&result).unwrap(),
            r#"{"exit_code":42}"#
        );
    }
}
