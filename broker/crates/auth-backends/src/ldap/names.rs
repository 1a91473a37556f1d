//! User names in patterns of distinguished names.

/// The variable of patterns.
pub(crate) const USERNAME: &str = "${username}";

/// Returns true if the pattern is a distinguished name, not for example `${username}@example.com`.
pub(crate) fn is_dn(pattern: &str) -> bool {
    pattern.contains('=')
}

/// Replaces the variable by the user name, which is escaped if the pattern is a distinguished name.
pub(crate) fn fill(pattern: &str, user: &str) -> String {
    match is_dn(pattern) {
        true => pattern.replace(USERNAME, &escape(user)),
        false => pattern.replace(USERNAME, user),
    }
}

/// Escapes an attribute value of a distinguished name (RFC 4514, section 2.4).
///
/// Filters need no such escaping, because LDAP encodes them as binary elements. RFC 4515 is about their form as text.
pub(crate) fn escape(value: &str) -> String {
    let mut escaped = String::with_capacity(value.len());
    let last = value.chars().count().saturating_sub(1);
    for (n, c) in value.chars().enumerate() {
        let is_special = match c {
            '"' | '+' | ',' | ';' | '<' | '>' | '\\' | '=' => true,
            '#' => n == 0,
            ' ' => n == 0 || n == last,
            c => c.is_ascii_control(),
        };
        match is_special {
            // Each of these characters has one byte.
            true => escaped.push_str(&format!("\\{:02x}", u32::from(c))),
            false => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_characters_are_escaped_in_distinguished_names() {
        for (name, escaped) in [
            ("alice", "alice"),
            ("a,b", "a\\2cb"),
            ("a+b=\"c\"", "a\\2bb\\3d\\22c\\22"),
            ("a\\b;<>", "a\\5cb\\3b\\3c\\3e"),
            ("*()", "*()"),
            ("#a#", "\\23a#"),
            (" a b ", "\\20a b\\20"),
            (" ", "\\20"),
            ("nul\0", "nul\\00"),
            ("é", "é"),
        ] {
            assert_eq!(escape(name), escaped, "{name}");
        }
    }

    #[test]
    fn names_are_escaped_only_in_patterns_of_distinguished_names() {
        let filled = fill("cn=${username},ou=people", "x,ou=admins");
        assert_eq!(filled, "cn=x\\2cou\\3dadmins,ou=people");
        assert_eq!(fill("${username}@corp", "a+b"), "a+b@corp");
        assert_eq!(fill("cn=${username}", "${username}"), "cn=${username}");
    }
}
