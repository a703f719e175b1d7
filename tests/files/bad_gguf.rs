//! Every rule of the GGUF container that a file can break, with its error.

use std::fmt::Debug;

use refrain::internals::kernels::BlockType;
use refrain::internals::model::gguf;
use refrain::internals::model::gguf::{GgufArray, GgufError, GgufFile, GgufValue};

use crate::model_files::Gguf;

/// A header written byte by byte, for contents that the writer refuses.
#[derive(Clone)]
struct Raw(Vec<u8>);

impl Raw {
    fn new(n_tensors: u64, n_pairs: u64) -> Self {
        Self(b"GGUF\x03\0\0\0".to_vec()).u64(n_tensors).u64(n_pairs)
    }

    fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn str(self, text: &str) -> Self {
        self.u64(text.len() as u64).bytes(text.as_bytes())
    }

    /// A tensor's line in the table.
    fn tensor(self, name: &str, dims: &[u64], ty: u32, offset: u64) -> Self {
        let raw = self.str(name).u32(dims.len() as u32);
        dims.iter().fold(raw, |raw, &dim| raw.u64(dim)).u32(ty).u64(offset)
    }

    /// Pads the header and appends data.
    fn data(mut self, len: usize) -> Vec<u8> {
        self.0.resize(self.0.len().next_multiple_of(32) + len, 0);
        self.0
    }
}

fn parse(bytes: impl Into<Vec<u8>>) -> Result<GgufFile, GgufError> {
    GgufFile::from_bytes(bytes.into().into(), "bad.gguf")
}

/// Asserts the variant by its `Debug` name, and that the message is one line with the file's name.
#[track_caller]
fn refused(bytes: impl Into<Vec<u8>>, variant: &str, message_has: &[&str]) {
    let error = match parse(bytes) {
        Ok(_) => panic!("accepted; expected {variant}"),
        Err(error) => error,
    };
    assert_variant(&error, variant);
    let message = error.to_string();
    assert!(message.starts_with("bad.gguf") && !message.contains('\n'), "{message}");
    for part in message_has {
        assert!(message.contains(part), "{message:?} does not have {part:?}");
    }
}

#[track_caller]
fn assert_variant(error: &impl Debug, variant: &str) {
    let debug = format!("{error:?}");
    assert!(debug.starts_with(variant), "expected {variant}, got {debug}");
}

#[test]
fn first_bytes() {
    refused(*b"", "Magic", &[]);
    refused(*b"GGU", "Magic", &[]);
    refused(*b"PK\x03\x04 a zip file", "Magic", &["[50, 4b, 03, 04]"]);
    refused(*b"FUGG\0\0\0\x03", "BigEndian", &["big-endian"]);
    refused(*b"GGUF\0\0\0\x03\0\0\0\0\0\0\0\0", "BigEndian", &[]);
    for version in [0u32, 1, 4, u32::MAX] {
        refused(Raw(b"GGUF".to_vec()).u32(version).0, "Version", &["supported: 2, 3"]);
    }
    refused(*b"GGUF\x03\0", "Truncated", &["version at offset 4", "4 bytes, 2 are left"]);
}

#[test]
fn version_2_is_read_like_version_3() {
    let mut bytes = Gguf::tiny().bytes();
    bytes[4] = 2;
    assert_eq!(parse(bytes).unwrap().version(), 2);
}

#[test]
fn counts_are_compared_with_the_limit_and_with_the_file() {
    refused(
        Raw::new(gguf::TENSORS_MAX + 1, 0).0,
        "OverLimit",
        &["tensor count", "131073", "limit is 131072"],
    );
    refused(Raw::new(0, u64::MAX).0, "OverLimit", &["metadata pair count", "offset 16"]);
    refused(Raw::new(0, 1000).0, "Truncated", &["metadata pairs", "13000 bytes, 0 are left"]);
    refused(Raw::new(1000, 0).0, "Truncated", &["tensor table"]);
}

#[test]
fn strings_are_compared_with_the_limit_and_with_the_file() {
    let key = |raw: Raw| raw.str("key").u32(8);
    refused(Raw::new(0, 1).u64(1 << 20).data(64), "OverLimit", &["metadata key", "limit is 65535"]);
    refused(Raw::new(0, 1).u64(1 << 10).data(64), "Truncated", &["metadata key at offset 32", "1024 bytes"]);
    refused(key(Raw::new(0, 1)).u64(u64::MAX).data(64), "OverLimit", &["key at offset", "limit is 16777216"]);
    refused(key(Raw::new(0, 1)).u64(1 << 20).data(64), "Truncated", &["key at offset"]);
    refused(key(Raw::new(0, 1)).u64(2).bytes(b"\xff\xfe").0, "NotUtf8", &["key at offset 47"]);
    refused(Raw::new(0, 1).u64(1).bytes(b"\xff").data(64), "NotUtf8", &["metadata key"]);
    refused(Raw::new(1, 0).u64(2000).data(4000), "OverLimit", &["tensor name", "limit is 1024"]);
}

#[test]
fn values_have_known_types() {
    let key = |n_pairs| Raw::new(0, n_pairs).str("key");
    refused(key(1).u32(13).data(64), "ValueType", &["key at offset 35", "13"]);
    refused(key(1).u32(9).u32(77).u64(0).data(64), "ValueType", &["key", "77"]);
    refused(key(1).u32(7).bytes(&[2]).data(64), "Bool", &["value 2"]);
    refused(key(1).u32(9).u32(7).u64(2).bytes(&[1, 9]).data(64), "Bool", &["value 9"]);
    refused(
        key(2).u32(0).bytes(&[1]).str("key").u32(0).bytes(&[1]).data(64),
        "DuplicateKey",
        &["`key`", "offset 40"],
    );
}

#[test]
fn arrays_are_compared_with_the_limits_and_with_the_file() {
    let array = |ty: u32, len: u64| Raw::new(0, 1).str("key").u32(9).u32(ty).u64(len);
    refused(array(0, gguf::ARRAY_LEN_MAX + 1).0, "OverLimit", &["key", "16777217"]);
    // The smallest possible element of each type determines the needed bytes.
    for (ty, bytes) in [(0u32, 1u64), (3, 2), (6, 4), (7, 1), (8, 8), (9, 12), (12, 8)] {
        let needed = format!("needs {} bytes", (1 << 24) * bytes);
        refused(array(ty, 1 << 24).data(64), "Truncated", &[&needed]);
    }
    let nested = |depth: usize| (0..depth).fold(Raw::new(0, 1).str("key").u32(9), |raw, _| raw.u32(9).u64(1));
    refused(nested(gguf::ARRAY_DEPTH_MAX).u32(0).u64(0).data(64), "ArrayDepth", &["more than 4 deep"]);
    let legal = nested(gguf::ARRAY_DEPTH_MAX - 1).u32(0).u64(0).data(64);
    assert_eq!(parse(legal).unwrap().metadata().len(), 1);
}

#[test]
fn alignment_is_a_power_of_two() {
    for bad in [0u32, 1, 4, 33, 1 << 21] {
        refused(
            Gguf::default().set("general.alignment", bad).bytes(),
            "Alignment",
            &["power of two", &bad.to_string()],
        );
    }
    refused(Gguf::default().set("general.alignment", "x").bytes(), "Alignment", &["a string"]);
}

#[test]
fn alignment_from_the_metadata_places_the_data() {
    let mut header = Raw::new(1, 1).str("general.alignment").u32(4).u32(256).tensor("t", &[4], 0, 256).0;
    header.resize(256 + 256, 0);
    header.extend_from_slice(&[7; 16]);
    let file = parse(header).unwrap();
    let tensor = file.tensor("t").unwrap();
    assert_eq!(tensor.offset, 512);
    assert_eq!(file.read(tensor).unwrap(), [7; 16]);
}

#[test]
fn tensor_table() {
    let one = |dims: &[u64], ty, offset| Raw::new(1, 0).tensor("t", dims, ty, offset).data(4096);
    refused(one(&[], 0, 0), "DimCount", &["`t`", "0 dimensions", "1 to 4"]);
    refused(one(&[1; 5], 0, 0), "DimCount", &["5 dimensions"]);
    refused(one(&[4, 0], 0, 0), "ZeroDim", &["[4, 0]"]);
    refused(one(&[1 << 33, 1 << 33], 0, 0), "SizeOverflow", &["`t`"]);
    refused(one(&[1 << 62], 0, 0), "SizeOverflow", &["`t`"]);
    refused(one(&[33], 8, 0), "PartialBlock", &["33", "32", "Q8_0"]);
    refused(one(&[128], 12, 0), "PartialBlock", &["256", "Q4_K"]);
    refused(one(&[4], 0, 16), "Misaligned", &["offset 16", "32 bytes"]);
    refused(one(&[1024], 0, 32), "OutOfFile", &["needs 4096 bytes"]);
    refused(one(&[4], 0, u64::MAX - 31), "OutOfFile", &["`t`"]);
    refused(one(&[4], 4711, 1 << 40), "OutOfFile", &["`t`"]);
    let two = |name: &str, offset| {
        Raw::new(2, 0).tensor("t", &[64], 0, 0).tensor(name, &[64], 0, offset).data(4096)
    };
    refused(two("t", 256), "DuplicateTensor", &["`t`"]);
    refused(two("u", 224), "Overlap", &["`u`", "`t`"]);
    refused(two("u", 0), "Overlap", &[]);
    assert_eq!(parse(two("u", 256)).unwrap().tensors().len(), 2);
}

#[test]
fn unknown_element_types_are_listed() {
    let file = parse(Raw::new(1, 0).tensor("t", &[64, 2], 4711, 64).data(128)).unwrap();
    let tensor = file.tensor("t").unwrap();
    assert_eq!((tensor.ty.to_string(), tensor.len), ("type 4711".to_owned(), None));
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let bytes = Gguf::tiny().bytes();
    // Behind the header only data can be missing; the padding of the last tensor is optional.
    for len in (0..bytes.len() - 32).step_by(97) {
        assert!(parse(&bytes[..len]).is_err(), "cut at {len} of {}", bytes.len());
    }
}

#[test]
fn a_missing_file_is_an_io_error() {
    let error = GgufFile::open("no/such/file.gguf".as_ref()).unwrap_err();
    assert_variant(&error, "Io");
    assert!(error.to_string().starts_with("no/such/file.gguf: cannot read"));
}

/// Writes `n` parts of the tiny model and returns the folder and the path of the first.
fn split_files(n: usize, change: impl Fn(usize, &mut Gguf)) -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let whole = Gguf::tiny();
    let per_part = whole.tensors.len().div_ceil(n);
    for (no, tensors) in whole.tensors.chunks(per_part).enumerate() {
        let metadata = if no == 0 { whole.metadata.clone() } else { Vec::new() };
        let mut part = Gguf { metadata, tensors: tensors.to_vec() };
        part.set("split.no", no as u16);
        part.set("split.count", n as u16);
        part.set("split.tensors.count", whole.tensors.len() as i32);
        change(no, &mut part);
        std::fs::write(dir.path().join(part_name(no, n)), part.bytes()).unwrap();
    }
    let first = dir.path().join(part_name(0, n));
    (dir, first)
}

fn part_name(no: usize, n: usize) -> String {
    format!("tiny-{:05}-of-{n:05}.gguf", no + 1)
}

#[test]
fn a_split_model_equals_the_whole() {
    let whole = parse(Gguf::tiny().bytes()).unwrap();
    let (dir, _) = split_files(3, |_, _| {});
    // Any part can be opened.
    for no in 0..3 {
        let split = GgufFile::open(&dir.path().join(part_name(no, 3))).unwrap();
        assert_eq!(split.part_names().count(), 3);
        assert_eq!(split.get("general.architecture"), whole.get("general.architecture"));
        for tensor in whole.tensors() {
            let found = split.tensor(&tensor.name).unwrap();
            assert_eq!((found.ty, &found.dims), (tensor.ty, &tensor.dims));
            assert_eq!(split.read(found).unwrap(), whole.read(tensor).unwrap(), "{}", tensor.name);
        }
    }
}

/// File names need not be UTF-8 on systems that permit it.
#[cfg(target_os = "linux")]
#[test]
fn parts_are_found_by_names_that_are_not_utf8() {
    use std::os::unix::ffi::OsStrExt;
    let (dir, _) = split_files(3, |_, _| {});
    let odd_path = |no| {
        let name = [b"t\xffny-\xfe", part_name(no, 3).as_bytes()].concat();
        dir.path().join(std::ffi::OsStr::from_bytes(&name))
    };
    (0..3).for_each(|no| std::fs::rename(dir.path().join(part_name(no, 3)), odd_path(no)).unwrap());
    for no in 0..3 {
        assert_eq!(GgufFile::open(&odd_path(no)).unwrap().part_names().count(), 3);
    }
}

#[test]
fn split_models_that_do_not_fit_together() {
    #[track_caller]
    fn open(path: &std::path::Path, variant: &str) {
        assert_variant(&GgufFile::open(path).unwrap_err(), variant);
    }
    let (dir, first) = split_files(3, |_, _| {});
    std::fs::remove_file(dir.path().join(part_name(1, 3))).unwrap();
    open(&first, "Io");

    let (dir, first) = split_files(2, |_, _| {});
    let renamed = dir.path().join("renamed.gguf");
    std::fs::rename(first, &renamed).unwrap();
    open(&renamed, "SplitName");
    let wrong_digits = dir.path().join("tiny-1-of-00002.gguf");
    std::fs::rename(renamed, &wrong_digits).unwrap();
    open(&wrong_digits, "SplitName");

    let fields: [(&str, GgufValue); 5] = [
        ("split.no", 0u16.into()),
        ("split.count", 3u16.into()),
        ("split.count", "2".into()),
        ("split.tensors.count", 99u16.into()),
        ("split.no", GgufValue::I32(-1)),
    ];
    for (field, value) in fields {
        let (_dir, first) = split_files(2, |no, part| {
            if no == 1 {
                part.set(field, value.clone());
            }
        });
        open(&first, "SplitField");
    }
    let (_dir, first) = split_files(2, |_, part| {
        part.set("split.count", 5000u16);
    });
    open(&first, "OverLimit");
    let (_dir, first) = split_files(2, |no, part| {
        if no == 1 {
            part.remove_tensor("blk.0.ffn_up.weight").add_tensor("token_embd.weight", BlockType::F32, &[4]);
        }
    });
    open(&first, "DuplicateTensor");
    refused(Gguf::tiny().set("split.count", 2u16).bytes(), "SplitInMemory", &["one of 2 parts"]);
}

#[test]
fn every_value_type_makes_the_round_trip() {
    let mut gguf = Gguf::default();
    let values: Vec<GgufValue> = vec![
        250u8.into(),
        (-3i8).into(),
        65000u16.into(),
        (-30000i16).into(),
        4_000_000_000u32.into(),
        (-2_000_000_000i32).into(),
        1.5f32.into(),
        true.into(),
        "naïve".into(),
        u64::MAX.into(),
        i64::MIN.into(),
        (-0.1f64).into(),
        vec![1u8, 2].into(),
        vec![-1i8].into(),
        vec![1u16].into(),
        vec![-1i16].into(),
        vec![1u32; 3].into(),
        vec![-1i32].into(),
        vec![0.5f32, f32::INFINITY].into(),
        vec![true, false].into(),
        vec!["a".to_owned(), String::new()].into(),
        vec![7u64].into(),
        vec![-7i64].into(),
        vec![1e300f64].into(),
        GgufArray::Array(vec![GgufArray::U8(vec![1]), GgufArray::String(vec![]), GgufArray::Array(vec![])])
            .into(),
    ];
    for (i, value) in values.iter().enumerate() {
        gguf.set(&format!("key.{i}"), value.clone());
    }
    let file = parse(gguf.bytes()).unwrap();
    for (i, value) in values.iter().enumerate() {
        assert_eq!(file.get(&format!("key.{i}")), Some(value));
    }
}

#[test]
fn the_writer_refuses_what_is_no_file() {
    use refrain::internals::model::gguf::{GgmlType, GgufWriter};
    let started = |ty: GgmlType, dims: &[u64]| {
        let mut writer = GgufWriter::new();
        writer.tensor("t", ty, dims);
        writer.start(Vec::new())
    };
    for (ty, dims) in [(8u32, &[33u64][..]), (4711, &[32]), (0, &[1 << 62]), (0, &[])] {
        assert_variant(&started(GgmlType(ty), dims).unwrap_err(), "NoSize");
    }
    let mut out = started(GgmlType(0), &[2]).unwrap();
    assert_variant(&out.write_tensor(&[0; 7]).unwrap_err(), "WrongLength");
    out.write_tensor(&[0; 8]).unwrap();
    assert_variant(&out.write_tensor(&[]).unwrap_err(), "TooManyTensors");
    assert_variant(&started(GgmlType(0), &[2]).unwrap().finish().unwrap_err(), "TensorsMissing");
    #[derive(Debug)]
    struct Full;
    impl std::io::Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    assert_variant(&GgufWriter::new().start(Full).unwrap_err(), "Io");
}
