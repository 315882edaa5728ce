//! The files of the page. They are in the program: there is nothing to install, and nothing to be changed.

use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

macro_rules! files {
    ($($path:literal: $kind:expr, $file:literal;)*) => {
        /// Path, kind and content of each.
        const FILES: &[(&str, &str, &str)] = &[
            $(($path, $kind, include_str!(concat!("assets/", $file))),)*
        ];
    };
}

files! {
    "/": HTML, "index.html";
    "/console.css": CSS, "console.css";
    "/icon.svg": SVG, "icon.svg";
    "/console.js": SCRIPT, "console.js";
    "/api.js": SCRIPT, "api.js";
    "/approvals.js": SCRIPT, "approvals.js";
    "/dom.js": SCRIPT, "dom.js";
    "/history.js": SCRIPT, "history.js";
    "/list.js": SCRIPT, "list.js";
    "/live.js": SCRIPT, "live.js";
    "/rules.js": SCRIPT, "rules.js";
    "/sessions.js": SCRIPT, "sessions.js";
}

/// The file of a path.
pub(super) async fn asset(uri: Uri) -> Response {
    match FILES.iter().find(|(path, ..)| *path == uri.path()) {
        Some((_, kind, content)) => ([(header::CONTENT_TYPE, *kind)], *content).into_response(),
        None => (StatusCode::NOT_FOUND, "There is no such page.\n").into_response(),
    }
}
