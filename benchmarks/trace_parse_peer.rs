// The least that reading a function graph can cost: one loop over the file in memory, a stack for
// each CPU, and calls, total and self time of each function. Knows one layout and loses nothing.
//
// usage: trace_parse_peer FILE    prints: functions, calls, sum of totals, sum of self times (ns)
use std::collections::HashMap;

fn number(text: &[u8]) -> u64 {
    let mut ns = 0u64;
    let mut decimals = None;
    for &byte in text {
        if byte == b'.' {
            decimals = Some(0);
        } else {
            ns = ns * 10 + u64::from(byte - b'0');
            decimals = decimals.map(|n| n + 1);
        }
    }
    ns * [1000, 100, 10, 1][decimals.unwrap_or(0)]
}

fn main() {
    let path = std::env::args().nth(1).expect("FILE");
    let text = std::fs::read(path).expect("readable");
    let mut sums: HashMap<&[u8], (u64, u64, u64)> = HashMap::new();
    let mut stacks: Vec<Vec<(&[u8], u64)>> = vec![Vec::new(); 256];
    for line in text.split(|byte| *byte == b'\n') {
        let Some(bar) = line.iter().position(|byte| *byte == b'|') else { continue };
        let Some(bracket) = line.iter().position(|byte| *byte == b')') else { continue };
        if bracket > bar || line.len() < bar + 4 {
            continue;
        }
        let cpu = line[..bracket].iter().fold(0usize, |n, b| if *b == b' ' { n } else { n * 10 + usize::from(b - b'0') });
        let stack = &mut stacks[cpu];
        let mark = &line[bracket + 1..bar];
        let ns = match mark.iter().position(|byte| byte.is_ascii_digit()) {
            Some(start) => {
                let end = mark[start..].iter().position(|byte| *byte == b' ').unwrap_or(0);
                number(&mark[start..start + end])
            }
            None => 0,
        };
        let body = line[bar + 1..].trim_ascii();
        if body.first() == Some(&b'}') {
            if let Some((name, children)) = stack.pop() {
                let sum = sums.entry(name).or_default();
                *sum = (sum.0 + 1, sum.1 + ns, sum.2 + ns.saturating_sub(children));
                if let Some(parent) = stack.last_mut() {
                    parent.1 += ns;
                }
            }
        } else if let Some(open) = body.iter().position(|byte| *byte == b'(') {
            let name = &body[..open];
            if body.ends_with(b"{") {
                stack.push((name, 0));
            } else {
                let sum = sums.entry(name).or_default();
                *sum = (sum.0 + 1, sum.1 + ns, sum.2 + ns);
                if let Some(parent) = stack.last_mut() {
                    parent.1 += ns;
                }
            }
        }
    }
    let all = sums.values().fold((0, 0, 0), |a, s| (a.0 + s.0, a.1 + s.1, a.2 + s.2));
    println!("{} {} {} {}", sums.len(), all.0, all.1, all.2);
}
