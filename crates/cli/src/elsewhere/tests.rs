use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

const HASH: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

struct Machine {
    dir: TempDir,
    folders: Folders,
}

impl Machine {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let below = |name: &str| vec![dir.path().join(name)];
        let folders =
            Folders { hub_cache: below("hub"), lm_studio: below("studio"), ollama: below("ollama") };
        Self { dir, folders }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn write(&self, path: &str, content: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// A manifest with one model.
    fn manifest(&self, name: &str, digest: &str, size: u64) {
        let layers = format!(
            r#"[{{"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:{HASH}", "size": 1}},
                {{"mediaType": "application/vnd.ollama.image.model", "digest": "{digest}", "size": {size}}}]"#
        );
        let text = format!(r#"{{"schemaVersion": 2, "layers": {layers}}}"#);
        self.write(&format!("ollama/manifests/{name}"), &text);
    }

    fn listed(&self) -> Vec<(String, &'static str)> {
        let (found, errors) = self.folders.list();
        assert!(errors.is_empty(), "{errors:?}");
        found.into_iter().map(|found| (found.name, found.origin.name())).collect()
    }

    fn problem(&self) -> String {
        let (found, errors) = self.folders.list();
        assert!(found.is_empty() && errors.len() == 1, "{found:?} {errors:?}");
        errors[0].to_string()
    }
}

#[test]
fn each_tool_has_its_models() {
    let machine = Machine::new();
    assert_eq!(machine.listed(), [], "no folder is there");
    machine.write(&format!("ollama/blobs/sha256-{HASH}"), "weights");
    machine.manifest("registry.ollama.ai/library/llama3.2/1b", &format!("sha256:{HASH}"), 7);
    machine.manifest("registry.ollama.ai/ada/own/latest", &format!("sha256:{HASH}"), 7);
    machine.manifest("hf.co/ada/own/Q4_0", &format!("sha256:{HASH}"), 7);
    machine.write("ollama/manifests/.DS_Store", "");
    machine.write("studio/org/Some-GGUF/some-q4.gguf", "four");
    machine.write("studio/org/Two-GGUF/two-q4.gguf", "four");
    machine.write("studio/org/Two-GGUF/two-q8.gguf", "eight");
    machine.write("studio/org/Two-GGUF/readme.md", "no model");
    machine.write("hub/models--org--name/refs/main", "c1\n");
    machine.write("hub/models--org--name/snapshots/c1/config.json", "{}");
    machine.write("hub/models--org--name/snapshots/c1/tokenizer.json", "{}");
    machine.write("hub/models--org--name/snapshots/c1/model.safetensors", "weights");
    machine.write("hub/models--org--name/snapshots/c0/old.gguf", "older");
    machine.write("hub/datasets--org--data/snapshots/c1/x.gguf", "no model");
    assert_eq!(
        machine.listed(),
        [
            ("ada/own:latest".to_owned(), "ollama"),
            ("hf.co/ada/own:Q4_0".to_owned(), "ollama"),
            ("llama3.2:1b".to_owned(), "ollama"),
            ("org/Some-GGUF".to_owned(), "lm-studio"),
            ("org/Two-GGUF:two-q4.gguf".to_owned(), "lm-studio"),
            ("org/Two-GGUF:two-q8.gguf".to_owned(), "lm-studio"),
            ("org/name".to_owned(), "hub-cache"),
        ]
    );
    for (name, path) in [
        ("llama3.2:1b", format!("ollama/blobs/sha256-{HASH}")),
        ("ada/own", format!("ollama/blobs/sha256-{HASH}")),
        ("hf.co/ada/own:Q4_0", format!("ollama/blobs/sha256-{HASH}")),
        ("org/Some-GGUF", "studio/org/Some-GGUF/some-q4.gguf".to_owned()),
        ("org/Two-GGUF:q8", "studio/org/Two-GGUF/two-q8.gguf".to_owned()),
        ("org/name", "hub/models--org--name/snapshots/c1".to_owned()),
        ("org/name@c1", "hub/models--org--name/snapshots/c1".to_owned()),
    ] {
        let found = machine.folders.find(name).unwrap().unwrap_or_else(|| panic!("{name}"));
        assert_eq!(found.path, machine.path(&path), "{name}");
    }
    for name in
        ["llama3.2", "llama3.2:3b", "org/name@c2", "other/name", "../x", "", "a/b/c/d", "org/name/x:1"]
    {
        assert!(machine.folders.find(name).unwrap().is_none(), "{name}");
    }
    assert!(matches!(machine.folders.find("org/Two-GGUF"), Err(FindError::Hub(HubError::Choose(_)))));
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    for (digest, size, word) in [
        (format!("sha256:{HASH}"), 7, "missing"),
        ("sha256:../../../etc/passwd".to_owned(), 7, "sha256"),
        (format!("md5:{HASH}"), 7, "sha256"),
    ] {
        let machine = Machine::new();
        machine.manifest("registry.ollama.ai/library/a/b", &digest, size);
        assert!(machine.problem().contains(word), "{}", machine.problem());
        assert!(matches!(machine.folders.find("a:b"), Err(FindError::Elsewhere(_))));
    }
    let machine = Machine::new();
    machine.write(&format!("ollama/blobs/sha256-{HASH}"), "cut");
    machine.manifest("registry.ollama.ai/library/a/b", &format!("sha256:{HASH}"), 7);
    assert!(machine.problem().contains("3 bytes, and its manifest says 7"), "{}", machine.problem());
    let one = r#"{"mediaType": "application/vnd.ollama.image.model", "digest": "", "size": 1}"#;
    for (text, word) in [
        ("{".to_owned(), "EOF"),
        (r#"{"layers": []}"#.to_owned(), "no layer"),
        (format!(r#"{{"layers": [{one}, {one}]}}"#), "several"),
        (r#"{"layers": [{"mediaType": 3}]}"#.to_owned(), "string"),
        ("x".repeat(300 << 10), "bytes"),
    ] {
        machine.write("ollama/manifests/registry.ollama.ai/library/a/b", &text);
        assert!(machine.problem().contains(word), "{}", machine.problem());
    }
}

#[cfg(unix)]
#[test]
fn links_stay_inside_the_folder_of_their_tool() {
    use std::os::unix::fs::symlink;
    let machine = Machine::new();
    machine.write("outside.gguf", "weights");
    machine.write("studio/org/A-GGUF/x", "");
    symlink(machine.path("outside.gguf"), machine.path("studio/org/A-GGUF/a.gguf")).unwrap();
    assert!(machine.problem().contains("leads out of"), "{}", machine.problem());
    assert!(matches!(
        machine.folders.find("org/A-GGUF"),
        Err(FindError::Elsewhere(ElsewhereError::Outside { .. }))
    ));
    // The files of the hub's cache are links to its blobs, and a blob may be gone.
    let machine = Machine::new();
    machine.write("hub/models--org--name/blobs/b1", "weights");
    machine.write("hub/models--org--name/snapshots/c1/x", "");
    for (blob, file) in [("b1", "a.gguf"), ("b2", "gone.gguf")] {
        let link = machine.path(&format!("hub/models--org--name/snapshots/c1/{file}"));
        symlink(format!("../../blobs/{blob}"), link).unwrap();
    }
    assert_eq!(machine.listed(), [("org/name".to_owned(), "hub-cache")]);
    // Nor does a folder that is a link to itself have an end.
    symlink(
        machine.path("hub/models--org--name/snapshots/c1"),
        machine.path("hub/models--org--name/snapshots/c1/again"),
    )
    .unwrap();
    assert!(machine.folders.list().0.iter().all(|found| found.name.starts_with("org/name")));
}

proptest! {
    #[test]
    fn no_name_leaves_its_folder(name in "[a-zA-Z./\\\\:@_ -]{0,30}") {
        let machine = Machine::new();
        machine.write("passwd", "weights");
        prop_assert!(machine.folders.find(&name).is_ok_and(|found| found.is_none()));
    }
}
