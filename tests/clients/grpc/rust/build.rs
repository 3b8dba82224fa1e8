fn main() -> std::io::Result<()> {
    tonic_prost_build::configure().compile_protos(&["protos/baton/v1/generation_service.proto"], &["protos"])
}
