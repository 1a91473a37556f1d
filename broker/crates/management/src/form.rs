//! Form uploads (`multipart/form-data`, RFC 7578), as browsers and `curl -F file=@FILE` send them.

/// Maximum length of a boundary in bytes (RFC 2046, 5.1.1).
const MAX_BOUNDARY: usize = 70;

/// Returns the boundary of a `multipart/form-data` content type.
pub(crate) fn boundary(content_type: &str) -> Option<&str> {
    let (kind, parameters) = content_type.split_once(';')?;
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let mut parameters = parameters.split(';');
    let boundary = parameters.find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        let is_boundary = name.trim().eq_ignore_ascii_case("boundary");
        is_boundary.then(|| value.trim().trim_matches('"'))
    })?;
    (!boundary.is_empty() && boundary.len() <= MAX_BOUNDARY).then_some(boundary)
}

/// Returns the byte range of the part with this name. None if the body has no such part or is not a
/// form.
pub(crate) fn part(body: &[u8], boundary: &str, name: &str) -> Option<std::ops::Range<usize>> {
    let delimiter = [b"\r\n--", boundary.as_bytes()].concat();
    // The first delimiter may lack the preceding line break.
    let first = delimiter.get(2..)?;
    let mut at = match body.starts_with(first) {
        true => first.len(),
        false => find(body, 0, &delimiter)? + delimiter.len(),
    };
    loop {
        // The last delimiter ends with two hyphens.
        if body.get(at..)?.starts_with(b"--") {
            return None;
        }
        let headers = find(body, at, b"\r\n")?;
        let content = find(body, headers, b"\r\n\r\n")? + 4;
        let end = find(body, content.saturating_sub(2), &delimiter)?;
        if is_named(body.get(headers..content)?, name) {
            return Some(content..end.max(content));
        }
        at = end + delimiter.len();
    }
}

fn find(body: &[u8], from: usize, needle: &[u8]) -> Option<usize> {
    let rest = body.get(from..)?;
    Some(from + rest.windows(needle.len()).position(|w| w == needle)?)
}

fn is_named(headers: &[u8], name: &str) -> bool {
    let headers = String::from_utf8_lossy(headers);
    headers.lines().any(|line| {
        let Some((header, value)) = line.split_once(':') else {
            return false;
        };
        let mut parameters = value.split(';').map(str::trim);
        header.trim().eq_ignore_ascii_case("content-disposition")
            && parameters.any(|p| {
                p.strip_prefix("name=")
                    .is_some_and(|v| v.trim_matches('"') == name)
            })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A form in curl's format.
    const FORM: &[u8] =
        b"--XX\r\nContent-Disposition: form-data; name=\"redirect\"\r\n\r\n../#/\r\n\
        --XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"d.json\"\r\n\
        Content-Type: application/json\r\n\r\n{\"a\":\r\n1}\r\n--XX--\r\n";

    fn file(body: &[u8]) -> Option<&[u8]> {
        body.get(part(body, "XX", "file")?)
    }

    #[test]
    fn file_part_is_found() {
        assert_eq!(file(FORM), Some(&b"{\"a\":\r\n1}"[..]));
        let after_text = [b"preamble\r\n", FORM].concat();
        assert_eq!(file(&after_text), Some(&b"{\"a\":\r\n1}"[..]));
        let empty = b"--XX\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n\r\n--XX--";
        assert_eq!(file(empty), Some(&b""[..]));
        assert_eq!(part(FORM, "XX", "other"), None);
    }

    #[test]
    fn truncated_form_never_yields_a_partial_file() {
        let end = FORM.len() - "--\r\n".len();
        for length in 0..end - 1 {
            let cut = FORM.get(..length).unwrap();
            assert!(file(cut).is_none_or(|f| f == b"{\"a\":\r\n1}"), "{length}");
        }
        assert_eq!(file(b""), None);
        assert_eq!(file(b"--XX--"), None);
    }

    #[test]
    fn boundary_is_parsed_and_validated() {
        assert_eq!(boundary("multipart/form-data; boundary=XX"), Some("XX"));
        let quoted = "Multipart/Form-Data; charset=utf-8; Boundary=\"a b\"";
        assert_eq!(boundary(quoted), Some("a b"));
        let long = format!("multipart/form-data; boundary={}", "x".repeat(71));
        for bad in [
            "application/json",
            "multipart/form-data",
            "multipart/form-data; boundary=",
            &long,
        ] {
            assert_eq!(boundary(bad), None, "{bad}");
        }
    }
}
