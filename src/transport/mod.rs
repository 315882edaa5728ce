//! What both ends of the policy link are made of below HTTP/2: streams of bytes, and the files of
//! certificates, keys and tokens by which each end shows who it is.
//!
//! Invariants: a secret that every user of the host may read or change isn't used; reading is bounded
//! and never blocks on what isn't a file; an error names the file, and nothing of what is in it.
//!
//! Not here: who is trusted with what, who connects to whom, when a file is read again.

mod files;
mod stream;

pub use files::{
    CredentialError, HTTP2, TOKEN_PREFIX, certificates, cryptography, private_key, read_public,
    read_secret, trusted, unusable,
};
pub use stream::Stream;
pub(crate) use stream::writes_go_to;
