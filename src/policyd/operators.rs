//! Who an operator is.

use std::sync::Arc;

/// Longest name, in bytes.
const MAX_NAME: usize = 512;

/// A person, as the token proves it: `operator:NAME`, or `auditor:NAME`. Never a gate.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Operator {
    name: Arc<str>,
    duty: Duty,
}

/// What a person may do here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Duty {
    /// Resolve approvals, end sessions, and read what is on record.
    Operate,
    /// Read what is on record.
    Audit,
}

impl Operator {
    /// `None` where the name isn't fit for one.
    pub(super) fn named(name: &str, duty: Duty) -> Option<Self> {
        let is_fit = !name.is_empty()
            && name.len() <= MAX_NAME
            && name.bytes().all(|byte| byte.is_ascii_graphic());
        let kind = match duty {
            Duty::Operate => "operator",
            Duty::Audit => "auditor",
        };
        is_fit.then(|| Self {
            name: format!("{kind}:{name}").into(),
            duty,
        })
    }

    pub(super) fn duty(&self) -> Duty {
        self.duty
    }

    pub(super) fn as_str(&self) -> &str {
        &self.name
    }
}

impl std::fmt::Display for Operator {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.name)
    }
}
