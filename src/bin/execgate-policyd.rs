//! The reference policy service.

fn main() -> std::process::ExitCode {
    execgate::policyd::command::main()
}
