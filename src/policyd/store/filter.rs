//! Which execs are asked for, and by which index they are found soonest.

use std::collections::BTreeMap;

use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, params_from_iter};

use crate::pb::audit::v1::Outcome;

/// Most sessions that are looked at one by one, rather than execs in their order.
const MOST_SESSIONS: usize = 16;
/// Most sessions that are looked up for where their execs are.
const MOST_LOOKED_UP: i64 = 20_000;
/// By how many places an event may be stored before one that was received earlier.
const REORDERED: i64 = 32_768;
/// So far the execs that a condition fits are counted, to find out which fits the fewest.
const MOST_COUNTED: i64 = 50_000;

/// Which execs are meant: those that fit all that is set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Filter {
    /// Beginning of the session's id, in lowercase.
    pub(crate) session: Option<String>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) gate: Option<String>,
    pub(crate) program: Option<String>,
    pub(crate) outcome: Option<Outcome>,
    pub(crate) code: Option<String>,
    /// Nanoseconds since 1970.
    pub(crate) since: Option<i64>,
}

const VERDICT: &str = "coalesce(x.action, x.answer)";
const REASON_CODE: &str = "coalesce(nullif(x.reason_code, ''), x.answer_reason_code)";

/// A condition with its values, each of which stands as `?` in it.
#[derive(Debug, Clone)]
pub(super) struct Condition {
    pub(super) text: String,
    pub(super) values: Vec<Value>,
}

impl Condition {
    fn new(text: impl Into<String>, values: impl IntoIterator<Item = Value>) -> Self {
        Self {
            text: text.into(),
            values: values.into_iter().collect(),
        }
    }

    /// That one of these holds.
    fn any(alternatives: Vec<Self>) -> Self {
        let texts: Vec<_> = alternatives
            .iter()
            .map(|condition| format!("({})", condition.text))
            .collect();
        let values = alternatives
            .into_iter()
            .flat_map(|condition| condition.values);
        Self::new(format!("({})", texts.join(" OR ")), values)
    }

    /// How many rows of a table fit, as far as they are counted.
    fn count(&self, table: &str, connection: &Connection, most: i64) -> rusqlite::Result<i64> {
        let values = self.values.iter().cloned().chain([Value::Integer(most)]);
        connection
            .prepare_cached(&format!(
                "SELECT count(*) FROM (SELECT 1 FROM {table} WHERE {} LIMIT ?)",
                self.text
            ))?
            .query_row(params_from_iter(values), |row| row.get(0))
    }
}

/// A filter, taken apart: alternatives that drive, and what must hold besides.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) drives: Vec<Condition>,
    pub(super) others: Vec<Condition>,
    /// Positions below which nothing can fit.
    pub(super) floor: i64,
    /// Which sessions can fit, where that says something and they are many.
    sessions: Option<Condition>,
}

impl Filter {
    /// All conditions that an index of execs helps with, in the order in which they had better drive where as many
    /// execs fit.
    fn conditions(&self) -> Vec<Vec<Condition>> {
        let text = |text: &str| Value::Text(text.to_owned());
        let mut all = Vec::new();
        if let Some(program) = &self.program {
            let name = program.rsplit('/').next().unwrap_or_default();
            all.push(vec![if program.contains('/') {
                Condition::new(
                    "x.program_name = ? AND x.program = ?",
                    [text(name), Value::Blob(program.clone().into_bytes())],
                )
            } else {
                Condition::new("x.program_name = ?", [text(program)])
            }]);
        }
        let verdict = |verdict: &str| Condition::new(format!("{VERDICT} = ?"), [text(verdict)]);
        let outcome = self.outcome.and_then(|outcome| {
            Some(match outcome {
                Outcome::Unspecified => return None,
                Outcome::Run => verdict("run"),
                Outcome::Escalate => verdict("escalate"),
                Outcome::Deny => verdict("deny"),
                Outcome::Monitored => Condition::new("x.answer_mode = ?", [text("monitored")]),
                Outcome::Pending => Condition::new(
                    format!("{VERDICT} = ? AND x.withdrawn IS NULL"),
                    [text("pending")],
                ),
            })
        });
        all.extend(outcome.map(|outcome| vec![outcome]));
        all.extend(self.code.as_ref().map(|code| {
            vec![
                Condition::new("x.code = ?", [text(code)]),
                Condition::new(format!("{REASON_CODE} = ?"), [text(code)]),
            ]
        }));
        all.extend(
            self.gate
                .as_ref()
                .map(|gate| vec![Condition::new("x.gate = ?", [text(gate)])]),
        );
        all
    }

    /// The condition on an exec's session id.
    fn of_session(&self, column: &str) -> Option<Condition> {
        self.session.as_ref().map(|prefix| {
            let end = format!("{prefix}g");
            Condition::new(
                format!("{column} >= ? AND {column} < ?"),
                [prefix.clone(), end].map(Value::Text),
            )
        })
    }

    /// The conditions on the labels of the session that has this id.
    fn of_labels(&self, id: &str) -> impl Iterator<Item = Condition> {
        self.labels.iter().map(move |(key, value)| {
            Condition::new(
                format!(
                    "EXISTS (SELECT 1 FROM session_labels l
                         WHERE l.session_id = {id} AND l.key = ? AND l.value = ?)"
                ),
                [key, value].map(|text| Value::Text(text.clone())),
            )
        })
    }

    /// Conditions that no index of execs helps with.
    fn rest(&self) -> Vec<Condition> {
        let since = self
            .since
            .map(|since| Condition::new("x.received_ns >= ?", [Value::Integer(since)]));
        self.of_labels("x.session_id").chain(since).collect()
    }

    /// All that must hold of an exec.
    pub(super) fn all(&self) -> Vec<Condition> {
        let conditions = self.conditions().into_iter().map(Condition::any);
        let session = self.of_session("x.session_id");
        session
            .into_iter()
            .chain(conditions)
            .chain(self.rest())
            .collect()
    }

    /// How the sessions that can fit are found, as a query of their ids; `None` where nothing is said of sessions, or
    /// too many fit to look each up.
    fn sessions(&self, connection: &Connection) -> rusqlite::Result<Option<Condition>> {
        let labels = self.labels.iter().map(|(key, value)| {
            let values = [key, value].map(|text| Value::Text(text.clone()));
            let condition = Condition::new("f.key = ? AND f.value = ?", values);
            ("session_labels f", condition)
        });
        let session = self.of_session("f.session_id");
        let session = session.map(|condition| ("sessions f", condition));
        let (mut fewest, mut least) = (None, MOST_LOOKED_UP);
        for (table, condition) in labels.chain(session) {
            let count = condition.count(table, connection, least)?;
            if count < least {
                (fewest, least) = (Some((table, condition)), count);
            }
        }
        let Some((table, condition)) = fewest else {
            return Ok(None);
        };
        let gate = self.gate.as_ref().map(|gate| {
            Condition::new(
                "EXISTS (SELECT 1 FROM sessions g WHERE g.session_id = f.session_id AND g.gate = ?)",
                [Value::Text(gate.clone())],
            )
        });
        let conditions: Vec<_> = std::iter::once(condition)
            .chain(self.of_session("f.session_id"))
            .chain(self.of_labels("f.session_id"))
            .chain(gate)
            .collect();
        let texts: Vec<_> = conditions
            .iter()
            .map(|condition| &*condition.text)
            .collect();
        let text = format!(
            "SELECT f.session_id AS id FROM {table} WHERE {}",
            texts.join(" AND ")
        );
        let values = conditions
            .into_iter()
            .flat_map(|condition| condition.values);
        Ok(Some(Condition::new(text, values)))
    }

    pub(super) fn plan(&self, connection: &Connection) -> rusqlite::Result<Plan> {
        let mut sessions = self.sessions(connection)?;
        let few = match &sessions {
            None => None,
            Some(sessions) => few(connection, sessions)?.filter(|few| {
                // An exec whose session's beginning is gone has no row there: look for its id itself.
                !few.is_empty() || self.session.is_none() || !self.labels.is_empty()
            }),
        };
        let whole = self.session.as_ref().filter(|id| id.len() == 32);
        let named = |id: String| Condition::new("x.session_id = ?", [Value::Text(id)]);
        let mut conditions = self.conditions();
        let drives = if let Some(few) = few {
            sessions = None;
            few.into_iter().map(named).collect()
        } else if let Some(id) = whole {
            sessions = None;
            vec![named(id.clone())]
        } else {
            if self.labels.is_empty() {
                // A session whose beginning is gone has execs, and no row.
                sessions = None;
            }
            rarest(connection, &mut conditions)?.unwrap_or_else(|| vec![Condition::new("1", [])])
        };
        let session = self.of_session("x.session_id");
        let others = conditions.into_iter().map(Condition::any);
        Ok(Plan {
            drives,
            others: others.chain(session).chain(self.rest()).collect(),
            floor: self.floor(connection)?,
            sessions,
        })
    }

    /// The lowest position that can fit.
    fn floor(&self, connection: &Connection) -> rusqlite::Result<i64> {
        let Some(since) = self.since else {
            return Ok(0);
        };
        let first: Option<i64> = connection
            .prepare_cached(
                "SELECT position FROM execs WHERE received_ns >= ?1 ORDER BY received_ns LIMIT 1",
            )?
            .query_row([since], |row| row.get(0))
            .optional()?
            .flatten();
        Ok(first.map_or(i64::MAX, |first| first.saturating_sub(REORDERED)))
    }
}

impl Plan {
    /// The highest position below this one at which something can fit; `None`: nothing can. Takes some
    /// microseconds for each session that has the labels.
    pub(super) fn ceiling(
        &self,
        connection: &Connection,
        below: i64,
    ) -> rusqlite::Result<Option<i64>> {
        let Some(sessions) = &self.sessions else {
            return Ok(Some(below));
        };
        let values = [Value::Integer(below)]
            .into_iter()
            .chain(sessions.values.iter().cloned());
        let highest: Option<i64> = connection
            .prepare_cached(&format!(
                "SELECT max((SELECT x.position FROM execs x
                     WHERE x.session_id = s.id AND x.position < ? ORDER BY x.position DESC LIMIT 1))
                 FROM ({}) s",
                sessions.text
            ))?
            .query_row(params_from_iter(values), |row| row.get(0))?;
        Ok(highest.map(|highest| highest.saturating_add(1).min(below)))
    }
}

/// The sessions, where they are few.
fn few(connection: &Connection, sessions: &Condition) -> rusqlite::Result<Option<Vec<String>>> {
    let most = i64::try_from(MOST_SESSIONS + 1).unwrap_or(i64::MAX);
    let values = sessions
        .values
        .iter()
        .cloned()
        .chain([Value::Integer(most)]);
    let found: Vec<String> = connection
        .prepare_cached(&format!("{} LIMIT ?", sessions.text))?
        .query_map(params_from_iter(values), |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    Ok((found.len() <= MOST_SESSIONS).then_some(found))
}

/// Takes out the condition that the fewest execs fit, as far as they are counted.
fn rarest(
    connection: &Connection,
    conditions: &mut Vec<Vec<Condition>>,
) -> rusqlite::Result<Option<Vec<Condition>>> {
    let mut rarest = None;
    if conditions.len() > 1 {
        let mut least = MOST_COUNTED;
        for (at, alternatives) in conditions.iter().enumerate() {
            let mut count = 0;
            for condition in alternatives {
                count += condition.count("execs x", connection, least)?;
            }
            if count < least {
                (least, rarest) = (count, Some(at));
            }
        }
    }
    Ok((!conditions.is_empty()).then(|| conditions.remove(rarest.unwrap_or(0))))
}
