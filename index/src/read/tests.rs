use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::*;

/// A folder with the given files.
fn folder(files: &[(&str, &[u8])]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    folder
}

fn read(path: &Path) -> Documents {
    read_documents(&[path], &ReadLimits::default()).unwrap()
}

fn names(root: &Path, paths: impl IntoIterator<Item = PathBuf>) -> Vec<String> {
    paths.into_iter().map(|path| path.strip_prefix(root).unwrap().display().to_string()).collect()
}

#[test]
fn a_folder_is_read_in_the_order_of_its_paths() {
    let folder = folder(&[("b.md", b"b"), ("a/z.txt", b"z"), ("a/b/c.MD", b"c"), ("c.markdown", b"c")]);
    let found = read(folder.path());
    let read = names(folder.path(), found.documents.into_iter().map(|document| document.path));
    assert_eq!(read, ["a/b/c.MD", "a/z.txt", "b.md", "c.markdown"]);
    assert_eq!(found.skipped, []);
}

#[test]
fn files_of_all_formats_are_read() {
    let folder = folder(&[
        ("a.html", b"<h1>Roof</h1><p>The roof leaks.</p>"),
        ("b.eml", b"Subject: Gate\r\n\r\nThe gate is =E2=82=AC 5.\r\n"),
        ("c.py", b"# The pump runs.\nx = 1\n"),
        ("d.csv", b"room,state\nattic,dry\n"),
        ("e.docx", b"no archive"),
        ("f.pdf", b"%PDF-1.4"),
    ]);
    let found = read(folder.path());
    let texts: Vec<_> = found.documents.iter().map(|document| document.text.as_str()).collect();
    let words = ["The roof leaks.", "Gate", "# The pump runs.\nx = 1", "attic"];
    assert!(texts.len() == 4 && texts.iter().zip(words).all(|(text, word)| text.contains(word)), "{texts:?}");
    assert!(found.documents.iter().all(|document| !document.is_markdown));
    let reasons: Vec<_> = found.skipped.iter().map(|skipped| &skipped.reason).collect();
    assert!(matches!(reasons[..], [SkipReason::Format(_), SkipReason::Format(_)]), "{reasons:?}");
    let broken = read_documents(&[folder.path().join("e.docx")], &ReadLimits::default()).unwrap_err();
    assert!(matches!(broken, ReadError::Format { .. }) && broken.to_string().contains("e.docx"), "{broken}");
}

#[test]
fn what_is_not_a_note_is_skipped_and_reported() {
    let folder = folder(&[
        (".git/HEAD.txt", b"ref"),
        ("binary.txt", b"a\0b"),
        ("latin1.md", b"caf\xe9"),
        ("long.md", &[b'a'; 11]),
        ("note.md", b"0123456789"),
        ("photo.jpg", b"\xff\xd8"),
    ]);
    let limits = ReadLimits { file_bytes_max: 10, ..ReadLimits::default() };
    let found = read_documents(&[folder.path()], &limits).unwrap();
    assert_eq!(found.documents.len(), 1);
    let skipped: Vec<_> = found
        .skipped
        .into_iter()
        .map(|skipped| (skipped.path.file_name().unwrap().to_str().unwrap().to_owned(), skipped.reason))
        .collect();
    let expected = [
        (".git", SkipReason::Hidden),
        ("binary.txt", SkipReason::NotText),
        ("latin1.md", SkipReason::NotText),
        ("long.md", SkipReason::TooLong { limit: 10 }),
        ("photo.jpg", SkipReason::NotASource),
    ];
    assert_eq!(skipped, expected.map(|(name, reason)| (name.to_owned(), reason)));
}

#[cfg(unix)]
#[test]
fn loops_of_links_end_and_each_file_is_read_once() {
    use std::os::unix::fs::symlink;

    let folder = folder(&[("notes/a.md", b"a")]);
    let root = folder.path();
    symlink(root, root.join("notes/up")).unwrap();
    symlink("itself", root.join("itself")).unwrap();
    symlink("nowhere.md", root.join("broken.md")).unwrap();
    symlink("notes/a.md", root.join("zz.md")).unwrap();
    let found = read(root);
    assert_eq!(names(root, found.documents.into_iter().map(|d| d.path)), ["notes/a.md"]);
    let reasons: Vec<_> = found.skipped.iter().map(|skipped| &skipped.reason).collect();
    assert!(matches!(
        reasons[..],
        [
            SkipReason::Unreadable(_),
            SkipReason::Unreadable(_),
            SkipReason::AlreadyRead,
            SkipReason::AlreadyRead
        ]
    ));
}

#[test]
fn a_named_file_is_read_whatever_its_extension() {
    let folder = folder(&[("mail.draft", b"\xef\xbb\xbfDear Ada,\r\n")]);
    let found = read(&folder.path().join("mail.draft"));
    assert_eq!(found.documents[0].text, "Dear Ada,\n");
    assert_eq!(found.documents[0].title, "mail");
}

#[test]
fn naming_a_file_twice_reads_it_once() {
    let folder = folder(&[("a.md", b"a")]);
    let file = folder.path().join("a.md");
    let found = read_documents(&[&file, folder.path(), &file], &ReadLimits::default()).unwrap();
    assert_eq!(found.documents.len(), 1);
}

#[test]
fn each_error_names_its_file_and_limit() {
    let folder = folder(&[("a.md", b"12345"), ("b.md", b"12345"), ("bad.md", b"\xff")]);
    let path = |name: &str| folder.path().join(name);
    let limits = ReadLimits { file_bytes_max: 5, total_bytes_max: 9, n_entries_max: 2, follows_links: false };
    let error = |path: &Path, limits: &ReadLimits| read_documents(&[path], limits).unwrap_err();

    assert!(matches!(error(&path("no.md"), &limits), ReadError::Io { path: p, .. } if p == path("no.md")));
    assert!(matches!(error(&path("bad.md"), &limits), ReadError::NotText { path: p } if p == path("bad.md")));
    let short = ReadLimits { file_bytes_max: 4, ..limits };
    assert!(matches!(error(&path("a.md"), &short), ReadError::FileTooLong { limit: 4, .. }));
    assert!(matches!(error(folder.path(), &limits), ReadError::TooManyEntries { limit: 2, .. }));
    let many = ReadLimits { n_entries_max: 3, ..limits };
    assert!(
        matches!(error(folder.path(), &many), ReadError::TotalTooLong { limit: 9, path: p } if p == path("b.md"))
    );
    assert_eq!(
        error(&path("a.md"), &short).to_string(),
        format!("`{}` is longer than 4 bytes", path("a.md").display())
    );
}

#[cfg(target_os = "linux")]
#[test]
fn an_endless_file_meets_the_limit() {
    let limits = ReadLimits { file_bytes_max: 1000, ..ReadLimits::default() };
    let error = read_documents(&["/dev/zero"], &limits).unwrap_err();
    assert!(matches!(error, ReadError::FileTooLong { .. }));
}
