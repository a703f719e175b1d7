{
  # nix run 'github:refrain-rs/refrain?dir=packaging' -- --version
  description = "Language models on the CPU that draft from your notes";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs = { self, nixpkgs }:
    let
      systems = [ "x86_64-linux" "aarch64-linux" "aarch64-darwin" ];
      each = f: nixpkgs.lib.genAttrs systems (system: f nixpkgs.legacyPackages.${system});
    in
    {
      packages = each (pkgs: {
        default = pkgs.rustPlatform.buildRustPackage {
          pname = "refrain";
          version = (builtins.fromTOML (builtins.readFile ../Cargo.toml)).workspace.package.version;
          src = ../.;
          cargoLock.lockFile = ../Cargo.lock;
          buildAndTestSubdir = "crates/cli";
          # The tests need Python, Node and time: `.ci/run` runs them.
          doCheck = false;
          meta.mainProgram = "refrain";
        };
      });
    };
}
