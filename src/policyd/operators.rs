//! Who an operator is.

use std::sync::Arc;

/// Longest name, in bytes.
const MAX_NAME: usize = 512;

/// Who may resolve approvals and end sessions, as the token proves it: `operator:NAME`. Never a gate.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Operator(Arc<str>);

impl Operator {
    /// `None` where the name isn't fit for one.
    pub(super) fn named(name: &str) -> Option<Self> {
        let is_fit = !name.is_empty()
            && name.len() <= MAX_NAME
            && name.bytes().all(|byte| byte.is_ascii_graphic());
        is_fit.then(|| Self(format!("operator:{name}").into()))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for Operator {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}
