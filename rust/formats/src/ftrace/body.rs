//! What stands behind the columns of a line: a call, its end, or an event among them.
use super::fields::{Body, Extra};

/// Take it apart; None if it is none of these.
pub(super) fn parse(text: &[u8]) -> Option<Body<'_>> {
    match text.first()? {
        b'}' => exit(text.get(1..)?),
        b'/' => event(text),
        _ => call(text),
    }
}

fn exit(rest: &[u8]) -> Option<Body<'_>> {
    let rest = rest.trim_ascii_end();
    if rest.is_empty() {
        return Some(Body::Exit(None, Extra::default()));
    }
    let comment = comment(rest.trim_ascii_start())?;
    // `name`, `name [mod]`, `name = 0x0`, `name ret=0x0`, `name V=0x0`, `<-caller ret=0x0`
    let name_end = [&b" = "[..], b" ret=", b" V=", b" A=", b" <-"]
        .iter()
        .filter_map(|mark| memchr::memmem::find(comment, mark))
        .min()
        .unwrap_or(comment.len());
    let nameless = [&b"= "[..], b"ret=", b"V=", b"A=", b"<-"]
        .iter()
        .any(|mark| comment.starts_with(mark));
    let (name, values) = if nameless {
        (&[][..], comment)
    } else {
        comment.split_at_checked(name_end)?
    };
    let name = name.trim_ascii();
    let extra = Extra {
        arguments: &[],
        comment: values.trim_ascii(),
    };
    Some(Body::Exit((!name.is_empty()).then_some(name), extra))
}

/// The inside of `/* ... */`.
fn comment(text: &[u8]) -> Option<&[u8]> {
    let inner = text.strip_prefix(b"/*")?;
    Some(inner.strip_suffix(b"*/").unwrap_or(inner).trim_ascii())
}

fn event(text: &[u8]) -> Option<Body<'_>> {
    let text = text.trim_ascii_end();
    let inner = comment(text)?;
    Some(Body::Event(inner))
}

fn call(text: &[u8]) -> Option<Body<'_>> {
    // A name may hold a blank and square brackets (`f [module]`), never a round one.
    let open = text.iter().position(|byte| !IN_NAME[usize::from(*byte)])?;
    let name = text.get(..open)?;
    let name = name.strip_suffix(b" ").unwrap_or(name);
    if matches!(name.first()?, b'0'..=b'9' | b'[' | b' ' | b'-') {
        return None;
    }
    let rest = text.get(open..)?;
    match rest {
        [] => return None,
        [other, ..] if *other != b'(' => return None,
        b"();" => return Some(Body::Leaf(name, Extra::default())),
        b"() {" => return Some(Body::Entry(name, Extra::default())),
        _ => {}
    }
    let mut rest = rest.trim_ascii_end();
    let mut extra = Extra::default();
    if rest.ends_with(b"*/") {
        let at = memchr::memmem::rfind(rest, b"/*")?;
        extra.comment = comment(rest.get(at..)?)?;
        rest = rest.get(..at)?.trim_ascii_end();
    }
    let (leaf, call) = match (rest.strip_suffix(b";"), rest.strip_suffix(b"{")) {
        (Some(call), _) => (true, call),
        (None, Some(call)) => (false, call.trim_ascii_end()),
        (None, None) => return None,
    };
    // `f(a=1)`, and of a module `f() [mod]`
    let close = memchr::memrchr(b')', call)?;
    extra.arguments = call.get(1..close)?;
    Some(if leaf {
        Body::Leaf(name, extra)
    } else {
        Body::Entry(name, extra)
    })
}

/// Bytes that a name may hold.
static IN_NAME: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 128 {
        let sign = byte as u8;
        table[byte] = sign.is_ascii_alphanumeric()
            || matches!(
                sign,
                b'_' | b'.' | b' ' | b'[' | b']' | b'-' | b'$' | b':' | b'@'
            );
        byte += 1;
    }
    table
};
