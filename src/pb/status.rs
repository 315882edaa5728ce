use tonic::Code;

/// When a gate calls again after a call has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reconnect {
    /// Soon: at the shortest interval, growing while calls go on failing.
    Soon,
    /// At the longest interval: the service refuses such calls, and trying again at once is useless.
    AtLongestInterval,
}

/// What the status with which a call ended means for the next. [`Code::Ok`] is a clean end, of
/// which a service that restarts makes use. In no case does the end of a call decide an exec.
#[must_use]
pub fn after_status(code: Code) -> Reconnect {
    match code {
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::NotFound
        | Code::AlreadyExists
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::Aborted
        | Code::OutOfRange
        | Code::Internal
        | Code::Unavailable
        | Code::DataLoss => Reconnect::Soon,
        Code::InvalidArgument
        | Code::PermissionDenied
        | Code::Unimplemented
        | Code::Unauthenticated => Reconnect::AtLongestInterval,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    macro_rules! rows {
        ($($name:ident: $code:ident => $reconnect:ident,)*) => {
            $(
                #[test]
                fn $name() {
                    assert_eq!(after_status(Code::$code), Reconnect::$reconnect);
                }
            )*
        };
    }

    rows! {
        clean_end: Ok => Soon,
        cancelled: Cancelled => Soon,
        unknown: Unknown => Soon,
        invalid_argument: InvalidArgument => AtLongestInterval,
        deadline_exceeded: DeadlineExceeded => Soon,
        not_found: NotFound => Soon,
        already_exists: AlreadyExists => Soon,
        permission_denied: PermissionDenied => AtLongestInterval,
        resource_exhausted: ResourceExhausted => Soon,
        failed_precondition: FailedPrecondition => Soon,
        aborted: Aborted => Soon,
        out_of_range: OutOfRange => Soon,
        unimplemented: Unimplemented => AtLongestInterval,
        internal: Internal => Soon,
        unavailable: Unavailable => Soon,
        data_loss: DataLoss => Soon,
        unauthenticated: Unauthenticated => AtLongestInterval,
    }

    /// What implementers of services read.
    #[test]
    fn the_codes_that_refuse_are_those_that_the_contract_names() {
        const CONTRACT: &str = include_str!("../../proto/execgate/policy/v1/policy_service.proto");
        let sentence = CONTRACT
            .split('.')
            .find(|sentence| sentence.contains("trying again at once is useless"))
            .expect("a sentence about them");
        let mut named: Vec<_> = sentence
            .split(|character: char| !character.is_ascii_uppercase() && character != '_')
            .filter(|word| word.len() > 1)
            .map(|word| word.replace('_', "").to_lowercase())
            .collect();
        named.sort_unstable();
        let codes = (0..=16).map(Code::from);
        let refuse = |code: &Code| after_status(*code) == Reconnect::AtLongestInterval;
        let mut refusals: Vec<_> = codes
            .filter(refuse)
            .map(|code| format!("{code:?}").to_lowercase())
            .collect();
        refusals.sort_unstable();
        assert_eq!(refusals, named);
    }
}
