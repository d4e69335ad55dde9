//! PCR values as `tpm2_pcrread` prints them; other forms are left to `excise.evidence.pcr`.
use excise_formats::ima::{Bank, Digest, MAX_DIGEST_BYTES};

/// The register of IMA.
pub const IMA_PCR: u32 = 10;
const MAX_PCR_INDEX: u32 = 31;
/// Digest size of each bank, in bytes; those of SHA-3 are read, and nothing replays them.
const SIZES: [(&str, usize); 8] = [
    ("sha1", 20),
    ("sha256", 32),
    ("sha384", 48),
    ("sha512", 64),
    ("sm3_256", 32),
    ("sha3_256", 32),
    ("sha3_384", 48),
    ("sha3_512", 64),
];

/// The values of IMA's register by bank, in the order of the text.
///
/// `None` where the text is of another form, contradicts itself, or has a bank that cannot be replayed.
#[must_use]
pub fn ima_values(text: &[u8]) -> Option<Vec<(Bank, Digest)>> {
    let plain = text
        .iter()
        .all(|byte| matches!(byte, b'\n' | b'\t' | 0x20..=0x7e));
    let text = std::str::from_utf8(text).ok().filter(|_| plain)?;
    let mut seen = [0u32; SIZES.len()];
    let mut current = None;
    let mut found = Vec::new();
    for line in text.split('\n').map(str::trim).filter(|s| !s.is_empty()) {
        let (left, right) = line.split_once(':')?;
        let (left, right) = (left.trim_end(), right.trim_start());
        if right.is_empty() {
            current = Some(SIZES.iter().position(|(name, _)| *name == left)?);
            continue;
        }
        let slot = current?;
        let index = index_of(left)?;
        let (name, size) = SIZES.get(slot)?;
        let value = value_of(right, *size)?;
        let bit = 1u32.checked_shl(index)?;
        let held = seen.get_mut(slot)?;
        if *held & bit != 0 {
            return None;
        }
        *held |= bit;
        if index == IMA_PCR {
            found.push((Bank::from_name(name)?, value));
        }
    }
    (!found.is_empty()).then_some(found)
}

fn index_of(text: &str) -> Option<u32> {
    let digits = matches!(text.len(), 1 | 2) && text.bytes().all(|byte| byte.is_ascii_digit());
    let index = text.parse().ok().filter(|_| digits)?;
    (index <= MAX_PCR_INDEX).then_some(index)
}

fn value_of(text: &str, size: usize) -> Option<Digest> {
    let digits = text
        .strip_prefix("0x")
        .or_else(|| text.strip_prefix("0X"))
        .unwrap_or(text);
    let mut value = [0u8; MAX_DIGEST_BYTES];
    hex::decode_to_slice(digits, value.get_mut(..size)?).ok()?;
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHA1: &str = "0x0102030405060708090A0B0C0D0E0F1011121314";

    fn text(rows: &[&str]) -> String {
        rows.join("\n")
    }

    #[test]
    fn the_values_of_ima_are_taken_in_their_order() {
        let sha256 = "AB".repeat(32);
        let ten = format!("    10: 0x{sha256}");
        let other = format!("    0 : {SHA1}");
        let sha1 = format!("    10: {SHA1}");
        let found = ima_values(text(&["  sha256:", &ten, "  sha1:", &other, &sha1]).as_bytes());
        let found = found.unwrap_or_default();
        let banks: Vec<Bank> = found.iter().map(|(bank, _)| *bank).collect();
        assert_eq!(banks, [Bank::Sha256, Bank::Sha1]);
        assert_eq!(
            found.first().map(|(_, value)| value[..32].to_vec()),
            Some(vec![0xab; 32])
        );
        assert_eq!(found.last().map(|(_, value)| value[19]), Some(0x14));
    }

    #[test]
    fn another_form_has_no_answer() {
        let sha1 = format!("10: {SHA1}");
        for rows in [
            vec![sha1.as_str()],
            vec!["sha1:", &sha1, &sha1],
            vec!["sha256:", &sha1],
            vec!["sha1:", &sha1, "PCR-10: 00"],
            vec!["sha1:", &sha1, "32: 00"],
            vec!["sha1:", "9: 0x0102030405060708090A0B0C0D0E0F1011121314"],
            vec!["sha1:", "10: 0x0102030405060708090A0B0C0D0E0F10111213"],
        ] {
            assert_eq!(ima_values(text(&rows).as_bytes()), None, "{rows:?}");
        }
        let sha3 = format!("sha3_256:\n10: {}", "ab".repeat(32));
        assert_eq!(ima_values(sha3.as_bytes()), None);
    }
}
