//! The policy service in Python, from `proto/` alone: nothing of it knows anything of this package.

use std::path::Path;
use std::process::Command;

use crate::gate::{Gate, directory};
use crate::machine::{Shell, available, in_both_shells, repository};
use crate::process::{self, Running};

in_both_shells! {
    a_service_written_in_python_decides,
}

/// Starts the service; its stubs are generated into `directory`.
fn start(python: &Path, directory: &Path) -> Running {
    let proto = repository().join("proto");
    let contract = proto.join("execgate/policy/v1");
    let files = std::fs::read_dir(&contract).expect("the contract");
    let files = files.map(|file| file.expect("a file").path());
    let mut generate = Command::new(python);
    generate.args(["-m", "grpc_tools.protoc", "-I"]).arg(&proto);
    for kind in ["--python_out", "--grpc_python_out"] {
        generate.arg(format!("{kind}={}", directory.display()));
    }
    process::run(generate.args(files)).exits(0);

    let mut serve = Command::new(python);
    serve
        .arg(repository().join("examples/policies/python/policy.py"))
        .arg("127.0.0.1:0");
    let mut service = Running::start(serve.env("PYTHONPATH", directory).current_dir(directory));
    service.wait_for("\n");
    service
}

fn a_service_written_in_python_decides(shell: &Shell) {
    let python = repository().join("target/python/bin/python");
    let mut has_grpc = Command::new(&python);
    has_grpc.args(["-c", "import grpc, grpc_tools.protoc"]);
    let there = has_grpc
        .output()
        .is_ok_and(|output| output.status.success());
    if !available(there, "no grpcio in target/python: `make python`") {
        return;
    }
    let place = directory();
    let service = start(&python, place.path());
    let output = service.stdout();
    let address = output
        .trim_end()
        .strip_prefix("listening on ")
        .expect("an address");
    let gate = Gate::with_policy(shell, &format!("http://{address}"));
    let gate = gate.option(["--output", "json"]);
    let done = gate.exec(
        "date +%s >/dev/null && echo escalated; git push; echo status $?; /bin/echo ran; \
         for i in {1..50}; do /bin/echo & done | sort -u | wc -l; wait",
    );
    let json: serde_json::Value = serde_json::from_slice(&done.exits(0).stdout).expect("JSON");
    assert_eq!(json["stdout"], "escalated\nstatus 1\nran\n1\n", "{done}");
    assert_eq!(
        json["stderr"], "Execution denied: pushing is for people\n",
        "{done}"
    );
    let counts = serde_json::json!({"run": 53, "escalate": 1, "deny": 1});
    assert_eq!(json["verdicts"], counts, "{done}");
    assert_eq!(service.stderr(), "", "the service complains");
}
