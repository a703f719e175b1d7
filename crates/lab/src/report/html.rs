//! A report as one self-contained page: tables, and rows whose tokens are coloured by draft source.

use std::fmt::Write as _;

use refrain::Tokenizer;

use super::written;
use crate::replay::TracedStep;

/// A row for the token-by-token view.
#[derive(Clone, Debug)]
pub struct TracedRow {
    /// The row's name and subtask.
    pub title: String,
    /// Its steps.
    pub steps: Vec<TracedStep>,
}

const STYLE: &str = "
:root{color-scheme:light dark;--line:#8884}
body{font:16px/1.5 system-ui,sans-serif;max-width:72rem;margin:0 auto;padding:1rem}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:.8rem;font-variant-numeric:tabular-nums}
td,th{border-bottom:1px solid var(--line);padding:.2rem .5rem;text-align:right;white-space:nowrap}
td:first-child,th:first-child{text-align:left}
h1{line-height:1.2}h2{margin-top:2rem}h3{overflow-wrap:anywhere}
pre{white-space:pre-wrap;overflow-wrap:anywhere;border:1px solid var(--line);padding:.6rem;font-size:.85rem}
pre span{border-radius:2px}
.s0{background:#00a87844}.s1{background:#0072b244}.s2{background:#56b4e955}.s3{background:#e69f0055}.s4{background:#cc79a755}
.r{border-left:2px solid #d55e00;cursor:help}
.r:hover,.r:focus{outline:1px solid #d55e00}
.r:hover::after,.r:focus::after{content:attr(data-r);position:fixed;left:1rem;right:1rem;bottom:1rem;
z-index:1;background:#222;color:#fff;padding:.5rem .7rem;white-space:pre-wrap;font:.8rem/1.4 monospace;max-height:45vh;overflow:hidden;border-radius:4px}
";

/// Builds the page. `tables` are the tables in Markdown, as written by [`markdown`](super::markdown).
pub fn write(title: &str, tables: &str, rows: &[TracedRow], tokenizer: &Tokenizer) -> String {
    written(|out| write_page(out, title, tables, rows, tokenizer))
}

fn write_page(
    out: &mut String,
    title: &str,
    tables: &str,
    rows: &[TracedRow],
    tokenizer: &Tokenizer,
) -> std::fmt::Result {
    let title = escaped(title);
    write!(out, "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title>")?;
    write!(
        out,
        "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><style>{STYLE}</style>"
    )?;
    write!(out, "<h1>{title}</h1>")?;
    write_tables(out, tables)?;
    write_rows(out, rows, tokenizer)?;
    writeln!(out, "</html>")
}

/// Renders the Markdown subset of reports: headings, lists, tables and paragraphs.
fn write_tables(out: &mut String, markdown: &str) -> std::fmt::Result {
    let mut lines = markdown.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(heading) = line.strip_prefix("### ") {
            write!(out, "<h2>{}</h2>", escaped(heading))?;
        } else if let Some(item) = line.strip_prefix("- ") {
            write!(out, "<div>{}</div>", escaped(item))?;
        } else if line.starts_with('|') {
            write!(out, "<div class=\"scroll\"><table>")?;
            write_row(out, line, "th")?;
            lines.next_if(|line| line.starts_with("| ---"));
            while let Some(line) = lines.next_if(|line| line.starts_with('|')) {
                write_row(out, line, "td")?;
            }
            write!(out, "</table></div>")?;
        } else if !line.is_empty() {
            write!(out, "<p>{}</p>", escaped(line))?;
        }
    }
    Ok(())
}

fn write_row(out: &mut String, line: &str, tag: &str) -> std::fmt::Result {
    write!(out, "<tr>")?;
    for cell in line.trim_matches('|').split('|') {
        write!(out, "<{tag}>{}</{tag}>", escaped(cell.trim()))?;
    }
    write!(out, "</tr>")
}

fn write_rows(out: &mut String, rows: &[TracedRow], tokenizer: &Tokenizer) -> std::fmt::Result {
    if rows.is_empty() {
        return Ok(());
    }
    let mut names: Vec<&str> = Vec::new();
    for (_, source) in rows.iter().flat_map(|row| &row.steps).flat_map(|step| &step.tokens) {
        if let Some(name) = source.as_deref().filter(|name| !names.contains(name)) {
            names.push(name);
        }
    }
    names.sort_unstable();
    write!(out, "<h2>Rows</h2><p>Plain text is the target's own; ")?;
    for (i, name) in names.iter().enumerate() {
        write!(out, "<span class=\"s{}\">{}</span> ", i % 5, escaped(name))?;
    }
    write!(
        out,
        "had drafted the rest. A bar marks a step of which drafts were rejected: hover over it, or tap it, to see them.</p>"
    )?;
    for row in rows {
        write!(out, "<h3>{}</h3><pre>", escaped(&row.title))?;
        row.steps.iter().try_for_each(|step| write_step(out, step, &names, tokenizer))?;
        write!(out, "</pre>")?;
    }
    Ok(())
}

fn write_step(
    out: &mut String,
    step: &TracedStep,
    names: &[&str],
    tokenizer: &Tokenizer,
) -> std::fmt::Result {
    let rejected: Vec<String> =
        step.rejected.iter().map(|path| tokenizer.decode(path).replace('\n', "⏎")).collect();
    if !rejected.is_empty() {
        let rejected = escaped(&rejected.join("\n")).replace('\n', "&#10;");
        write!(out, "<span class=\"r\" tabindex=\"0\" data-r=\"{rejected}\">")?;
    }
    // Adjacent tokens of one source are joined, because a character may consist of several tokens.
    for run in step.tokens.chunk_by(|a, b| a.1 == b.1) {
        let tokens: Vec<_> = run.iter().map(|token| token.0).collect();
        let text = escaped(&tokenizer.decode(&tokens));
        match run[0].1.as_deref().and_then(|name| names.iter().position(|other| *other == name)) {
            Some(source) => write!(
                out,
                "<span class=\"s{}\" title=\"{}\">{text}</span>",
                source % 5,
                escaped(names[source])
            )?,
            None => write!(out, "{text}")?,
        }
    }
    if !rejected.is_empty() {
        write!(out, "</span>")?;
    }
    Ok(())
}

/// Escapes text: rows are untrusted input.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(escaped("<a href=\"x\">'&"), "&lt;a href=&quot;x&quot;&gt;&#39;&amp;");
        let mut out = String::new();
        write_tables(&mut out, "### A <b>\n\n| x | y |\n| --- | ---: |\n| 1 | <i> |\n\n- item\n").unwrap();
        assert_eq!(
            out,
            "<h2>A &lt;b&gt;</h2><div class=\"scroll\"><table><tr><th>x</th><th>y</th></tr>\
             <tr><td>1</td><td>&lt;i&gt;</td></tr></table></div><div>item</div>"
        );
    }
}
