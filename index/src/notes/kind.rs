//! The kinds of sources, told apart by the names of files.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// The kind of a source of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum SourceKind {
    /// Plain text with or without marks: `.md`, `.markdown`, `.txt`, `.rst`, `.org`.
    Note,
    /// Mail: `.eml`, `.mbox`.
    Mail,
    /// A chat with a JSON object per line: `.jsonl`.
    Chat,
    /// A saved screen: accessibility XML (`.xml`), or a line per element (`.screen`).
    Screen,
    /// Calendar events: `.ics`.
    Event,
    /// Documents: `.html`, `.htm`, `.xhtml`, `.docx`, `.docm`, `.odt`, `.ott`, `.epub`, `.pdf`.
    Document,
    /// Tables and structured values: `.csv`, `.tsv`, `.json`, `.yaml`, `.yml`.
    Data,
    /// Source code and settings, by the endings of programming languages.
    Code,
}

impl SourceKind {
    /// All kinds.
    pub const ALL: [Self; 8] = [
        Self::Note,
        Self::Mail,
        Self::Chat,
        Self::Screen,
        Self::Event,
        Self::Document,
        Self::Data,
        Self::Code,
    ];

    /// The kind's name: `note`, `mail`, `chat`, `screen`, `event`, `document`, `data` or `code`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Mail => "mail",
            Self::Chat => "chat",
            Self::Screen => "screen",
            Self::Event => "event",
            Self::Document => "document",
            Self::Data => "data",
            Self::Code => "code",
        }
    }

    /// The kind of a file by its extension; `None` if it is no source.
    pub fn of(path: &Path) -> Option<Self> {
        Format::of(path).map(Format::kind)
    }

    pub(super) fn code(self) -> u8 {
        self as u8
    }

    pub(super) fn from_code(code: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| u64::from(kind.code()) == code)
    }
}

impl fmt::Display for SourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no [`SourceKind`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is none of note, mail, chat, screen, event, document, data, code")]
pub struct UnknownKind(pub String);

impl FromStr for SourceKind {
    type Err = UnknownKind;

    fn from_str(name: &str) -> Result<Self, UnknownKind> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| UnknownKind(name.to_owned()))
    }
}

/// A file format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Text,
    Mail,
    Mailbox,
    Chat,
    ScreenText,
    ScreenXml,
    Calendar,
    Rst,
    Org,
    Html,
    Xhtml,
    Csv,
    Tsv,
    Json,
    Yaml,
    Code,
    Docx,
    Odt,
    Epub,
    Pdf,
}

/// Endings of source code and settings.
const CODE: [&str; 62] = [
    "asm", "bash", "bat", "c", "cc", "clj", "cmake", "cpp", "cs", "css", "cu", "cxx", "d", "dart", "el",
    "ex", "exs", "f90", "fs", "go", "gradle", "groovy", "h", "hh", "hpp", "hs", "ini", "java", "jl", "js",
    "jsx", "kt", "kts", "lisp", "lua", "m", "mjs", "ml", "mm", "nim", "php", "pl", "proto", "ps1", "py",
    "pyi", "r", "rb", "rs", "scala", "scm", "scss", "sh", "sql", "swift", "tcl", "tex", "toml", "ts", "tsx",
    "vue", "zig",
];

impl Format {
    pub(super) fn of(path: &Path) -> Option<Self> {
        let extension = path.extension()?.to_str()?.to_ascii_lowercase();
        Some(match extension.as_str() {
            "md" | "markdown" | "txt" => Self::Text,
            "eml" => Self::Mail,
            "mbox" => Self::Mailbox,
            "jsonl" => Self::Chat,
            "screen" => Self::ScreenText,
            "xml" => Self::ScreenXml,
            "ics" => Self::Calendar,
            "rst" => Self::Rst,
            "org" => Self::Org,
            "html" | "htm" => Self::Html,
            "xhtml" => Self::Xhtml,
            "docx" | "docm" => Self::Docx,
            "odt" | "ott" => Self::Odt,
            "epub" => Self::Epub,
            "pdf" => Self::Pdf,
            "csv" => Self::Csv,
            "tsv" => Self::Tsv,
            "json" => Self::Json,
            "yaml" | "yml" => Self::Yaml,
            code if CODE.contains(&code) => Self::Code,
            _ => return None,
        })
    }

    /// Whether the file is text, so that a passage has a line.
    pub(super) fn has_lines(self) -> bool {
        !matches!(self, Self::Docx | Self::Odt | Self::Epub | Self::Pdf)
    }

    pub(super) fn kind(self) -> SourceKind {
        match self {
            Self::Text | Self::Rst | Self::Org => SourceKind::Note,
            Self::Mail | Self::Mailbox => SourceKind::Mail,
            Self::Chat => SourceKind::Chat,
            Self::ScreenText | Self::ScreenXml => SourceKind::Screen,
            Self::Calendar => SourceKind::Event,
            Self::Html | Self::Xhtml | Self::Docx | Self::Odt | Self::Epub | Self::Pdf => {
                SourceKind::Document
            }
            Self::Csv | Self::Tsv | Self::Json | Self::Yaml => SourceKind::Data,
            Self::Code => SourceKind::Code,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_come_back_from_names_and_codes() {
        for kind in SourceKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
            assert_eq!(SourceKind::from_code(kind.code().into()), Some(kind));
        }
        assert_eq!("notes".parse::<SourceKind>(), Err(UnknownKind("notes".to_owned())));
        assert_eq!(SourceKind::of(Path::new("a/B.MD")), Some(SourceKind::Note));
        assert_eq!(SourceKind::of(Path::new("a/md")), None);
    }
}
