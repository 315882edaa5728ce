//! Compiles `proto/` with protox, so that no protoc is needed. The wrapper needs none of it.

/// The file of each contract that leads to all of it.
#[cfg(feature = "full")]
const CONTRACTS: [&str; 4] = [
    "execgate/policy/v1/policy_service.proto",
    "execgate/approval/v1/approval_service.proto",
    "execgate/audit/v1/audit_service.proto",
    "execgate/session/v1/session_service.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    #[cfg(feature = "full")]
    compile_protos()?;
    Ok(())
}

#[cfg(feature = "full")]
fn compile_protos() -> Result<(), Box<dyn std::error::Error>> {
    let descriptors = protox::Compiler::new(["proto"])?
        .include_imports(true)
        .include_source_info(true)
        .open_files(CONTRACTS)?
        .encode_file_descriptor_set();
    let out_dir =
        std::path::PathBuf::from(std::env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    let path = out_dir.join("execgate_descriptors.bin");
    std::fs::write(&path, descriptors)?;
    tonic_prost_build::configure()
        .file_descriptor_set_path(&path)
        .skip_protoc_run()
        .bytes(".")
        .compile_protos(&CONTRACTS, &["proto"])?;
    Ok(())
}
