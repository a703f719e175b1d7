//! Files of the formats that are no text, made by the tests.

use miniz_oxide::deflate::{compress_to_vec, compress_to_vec_zlib};

/// A ZIP archive. (Readers of notes compare no checksums of its files.)
pub(crate) fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    for (name, data) in files {
        let packed = compress_to_vec(data, 6);
        let mut header = vec![20, 0, 0, 0, 8, 0, 0, 0, 0, 0];
        for field in [0, packed.len() as u32, data.len() as u32] {
            header.extend(field.to_le_bytes());
        }
        header.extend((name.len() as u16).to_le_bytes());
        header.extend([0, 0]);
        let offset = bytes.len() as u32;
        for (record, mark, more) in
            [(&mut bytes, b"PK\x03\x04", None), (&mut directory, b"PK\x01\x02", Some(offset))]
        {
            record.extend(mark);
            if let Some(offset) = more {
                record.extend([20, 0]);
                record.extend(&header);
                record.extend([0; 10]);
                record.extend(offset.to_le_bytes());
            } else {
                record.extend(&header);
            }
            record.extend(name.as_bytes());
        }
        bytes.extend(&packed);
    }
    let (start, n) = (bytes.len() as u32, files.len() as u16);
    bytes.extend(&directory);
    bytes.extend(b"PK\x05\x06\x00\x00\x00\x00");
    bytes.extend([n.to_le_bytes(), n.to_le_bytes()].concat());
    bytes.extend((directory.len() as u32).to_le_bytes());
    bytes.extend(start.to_le_bytes());
    bytes.extend([0, 0]);
    bytes
}

pub(crate) fn docx(document: &str) -> Vec<u8> {
    let styles = "<w:styles><w:style w:styleId='H1'><w:name w:val='heading 1'/></w:style></w:styles>";
    archive(&[("word/document.xml", document.as_bytes()), ("word/styles.xml", styles.as_bytes())])
}

pub(crate) fn odt(content: &str) -> Vec<u8> {
    let meta = "<office:meta><dc:title>Title</dc:title><dc:date>2024-05-01T12:00:00</dc:date></office:meta>";
    archive(&[("content.xml", content.as_bytes()), ("meta.xml", meta.as_bytes())])
}

pub(crate) fn epub(chapter: &[u8]) -> Vec<u8> {
    let container = "<container><rootfiles><rootfile full-path='a/a.opf'/></rootfiles></container>";
    let package = "<package><metadata><dc:title>Title</dc:title></metadata><manifest><item id='c' href='c.xhtml'/></manifest>\
        <spine><itemref idref='c'/></spine></package>";
    archive(&[
        ("META-INF/container.xml", container.as_bytes()),
        ("a/a.opf", package.as_bytes()),
        ("a/c.xhtml", chapter),
    ])
}

/// A PDF with a page for each text of operators, whose font is `F`; `trailer` has more entries.
pub(crate) fn pdf(pages: &[&[u8]], trailer: &str) -> Vec<u8> {
    let kids: String = (0..pages.len()).map(|at| format!("{} 0 R ", 4 + 2 * at)).collect();
    let mut objects = vec![
        b"<</Type /Catalog /Pages 2 0 R>>".to_vec(),
        format!("<</Type /Pages /Kids [{kids}] /Resources <</Font <</F 3 0 R>>>>>>").into_bytes(),
        b"<</Type /Font /Subtype /Type1 /Encoding /WinAnsiEncoding>>".to_vec(),
    ];
    for (at, operators) in pages.iter().enumerate() {
        let data = compress_to_vec_zlib(operators, 6);
        objects.push(format!("<</Type /Page /Contents {} 0 R>>", 5 + 2 * at).into_bytes());
        let head = format!("<</Filter /FlateDecode /Length {}>>\nstream\n", data.len());
        objects.push([head.as_bytes(), &data, b"\nendstream"].concat());
    }
    let mut bytes = b"%PDF-1.7\n".to_vec();
    for (at, object) in objects.iter().enumerate() {
        bytes.extend([format!("{} 0 obj\n", at + 1).as_bytes(), object, b"\nendobj\n"].concat());
    }
    bytes.extend(format!("trailer <</Root 1 0 R {trailer}>>\n%%EOF\n").into_bytes());
    bytes
}
