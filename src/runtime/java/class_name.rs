//! Names of classes as people know them, the same in every run of a program.

/// Classes that the machine generates in numbers, and how it continues their names.
const NUMBERED: [&str; 6] = [
    "$$Lambda$",
    "LambdaForm$MH$",
    "LambdaForm$DMH$",
    "GeneratedMethodAccessor",
    "GeneratedConstructorAccessor",
    "GeneratedSerializationConstructorAccessor",
];

/// Returns the name of a class from the machine's name of it. `None` if no class has such a name.
///
/// Packages have dots. The address of a hidden class is left out, and the number of a class that
/// the machine has generated: both are others in each run.
pub(super) fn class_name(internal: &str) -> Option<String> {
    // The machine writes the address behind a plus sign, and behind a slash or a dot for people.
    let name = match internal.rsplit_once('+') {
        Some((name, address)) if is_address(address) => name,
        _ => internal,
    };
    let is_valid = !name.is_empty()
        && !name.contains(|it: char| it.is_control() || matches!(it, '.' | ';' | '['))
        && name.split('/').all(|part| !part.is_empty());
    is_valid.then(|| without_number(name).replace('/', "."))
}

fn is_address(text: &str) -> bool {
    let digits = text.strip_prefix("0x").unwrap_or_default();
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn without_number(name: &str) -> &str {
    let start = name.trim_end_matches(|it: char| it.is_ascii_digit());
    let is_numbered = start.len() < name.len() && NUMBERED.iter().any(|it| start.ends_with(it));
    if is_numbered { start.strip_suffix('$').unwrap_or(start) } else { name }
}

/// Returns whether a method can have this name.
pub(super) fn is_method_name(name: &str) -> bool {
    let is_foreign = |it: char| it.is_control() || matches!(it, '.' | ';' | '[' | '/');
    let is_plain = !name.contains(|it: char| is_foreign(it) || matches!(it, '<' | '>'));
    !name.is_empty() && (is_plain || matches!(name, "<init>" | "<clinit>"))
}

/// Returns whether a method can have this signature.
pub(super) fn is_signature(signature: &str) -> bool {
    signature.starts_with('(')
        && signature.contains(')')
        && !signature.ends_with(')')
        && !signature.contains(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_classes_have_one_name_in_all_runs() {
        let check = |internal: &str, expected: &str| {
            assert_eq!(class_name(internal).as_deref(), Some(expected), "{internal}");
        };
        check("java/util/HashMap", "java.util.HashMap");
        check("a/Busy$$Lambda$34+0x00007f1e3c00a208", "a.Busy$$Lambda");
        check("a/Busy$$Lambda+0x00007f1e3c00a208", "a.Busy$$Lambda");
        check("a/Busy$$Lambda$7", "a.Busy$$Lambda");
        check("java/lang/invoke/LambdaForm$MH$12", "java.lang.invoke.LambdaForm$MH");
        check(
            "java/lang/invoke/LambdaForm$DMH+0x0000000800001c00",
            "java.lang.invoke.LambdaForm$DMH",
        );
        check(
            "jdk/internal/reflect/GeneratedMethodAccessor3",
            "jdk.internal.reflect.GeneratedMethodAccessor",
        );
        // Numbers that the compiler has given are the same in each run.
        check("a/Busy$1", "a.Busy$1");
        check("a/Vector2", "a.Vector2");
        check("a/C+0xyz", "a.C+0xyz");
        for wrong in ["", "a//b", "a;", "[I", "a.b", "a\nb", "+0x1"] {
            assert_eq!(class_name(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn names_of_methods_are_checked() {
        assert!(
            ["put", "<init>", "<clinit>", "lambda$run$0", "größe"].into_iter().all(is_method_name)
        );
        assert!(!["", "<x>", "a.b", "a/b", "a;b", "a\u{1}"].into_iter().any(is_method_name));
        assert!(["()V", "(ILjava/lang/String;)[I"].into_iter().all(is_signature));
        assert!(!["", "()", "V", "(I"].into_iter().any(is_signature));
    }
}
