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

            #[test]
            fn every_code_has_a_row() {
                let mut rows = vec![$(Code::$code as i32),*];
                rows.sort_unstable();
                assert_eq!(rows, (0..=16).collect::<Vec<_>>());
            }
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
}
