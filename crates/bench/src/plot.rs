//! Curves over sizes that double, drawn as a picture (SVG) that any browser shows: both axes are
//! logarithmic. It knows how a picture is written, and nothing of the measurements.

use std::fmt::Write;

/// One curve.
pub struct Curve {
    /// Its name in the legend.
    pub name: String,
    /// Points: what goes to the right, what goes up in the unit of the picture.
    pub points: Vec<(u64, f64)>,
}

/// Size of the picture and of the space around the curves.
const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 250.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;

/// Colours that people who see few of them can tell apart, with dashes for the second half.
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

/// Draws curves with at least one point in all; values have to be positive. `label` writes what goes to
/// the right.
pub fn draw(title: &str, across: &str, up: &str, curves: &[Curve], label: &dyn Fn(u64) -> String) -> String {
    let xs = || curves.iter().flat_map(|curve| &curve.points).map(|point| point.0 as f64);
    let ys = || curves.iter().flat_map(|curve| &curve.points).map(|point| point.1);
    let (x_min, x_max) = (xs().fold(f64::MAX, f64::min), xs().fold(1.0, f64::max));
    let y_min = 10f64.powf(ys().fold(f64::MAX, f64::min).log10().floor());
    let y_max = 10f64.powf(ys().fold(f64::MIN_POSITIVE, f64::max).log10().ceil()).max(y_min * 10.0);
    let share = |value: f64, min: f64, max: f64| if max > min { (value / min).ln() / (max / min).ln() } else { 0.5 };
    let x = |value: f64| LEFT + share(value, x_min, x_max) * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| HEIGHT - BOTTOM - share(value, y_min, y_max) * (HEIGHT - TOP - BOTTOM);
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    let mut put = |line: String| writeln!(text, "{line}").expect("a string can be written");
    put(format!("<text x=\"{LEFT}\" y=\"22\" font-size=\"15\">{}</text>", escaped(title)));
    put(format!(
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
        (LEFT + right) / 2.0,
        HEIGHT - 10.0,
        escaped(across)
    ));
    let middle = (TOP + bottom) / 2.0;
    put(format!(
        "<text transform=\"translate(16 {middle}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
        escaped(up)
    ));
    let mut tick = y_min;
    while tick <= y_max * 1.001 {
        for part in 1..10 {
            let value = tick * f64::from(part);
            if value <= y_max * 1.001 {
                let (at, grey) = (y(value), if part == 1 { "#999" } else { "#e5e5e5" });
                put(format!("<path d=\"M{LEFT} {at:.1}H{right}\" stroke=\"{grey}\"/>"));
            }
        }
        put(format!("<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{tick}</text>", LEFT - 6.0, y(tick) + 4.0));
        tick *= 10.0;
    }
    let mut size = x_min;
    while size <= x_max * 1.001 {
        let at = x(size);
        put(format!("<path d=\"M{at:.1} {TOP}V{bottom}\" stroke=\"#e5e5e5\"/>"));
        put(format!(
            "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            bottom + 16.0,
            label(size as u64)
        ));
        size *= 2.0;
    }
    for (index, curve) in curves.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let dash = if index < COLOURS.len() { "" } else { " stroke-dasharray=\"6 3\"" };
        let points: Vec<String> =
            curve.points.iter().map(|(across, up)| format!("{:.1},{:.1}", x(*across as f64), y(*up))).collect();
        let style = format!("fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}");
        put(format!("<polyline points=\"{}\" {style}/>", points.join(" ")));
        for point in &points {
            let (across, up) = point.split_once(',').unwrap_or_default();
            put(format!("<circle cx=\"{across}\" cy=\"{up}\" r=\"3\" fill=\"{colour}\"/>"));
        }
        let at = TOP + 8.0 + 20.0 * index as f64;
        put(format!("<path d=\"M{} {at}h24\" {style}/>", right + 12.0));
        put(format!("<text x=\"{}\" y=\"{}\">{}</text>", right + 42.0, at + 4.0, escaped(&curve.name)));
    }
    text + "</svg>\n"
}

/// `64K`, `16M`.
pub fn short(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
        bytes if bytes >= 1 << 10 => format!("{}K", bytes >> 10),
        bytes => bytes.to_string(),
    }
}

/// `156k`, `10M`: a number of things, rounded.
pub fn count(number: u64) -> String {
    match number {
        0..1000 => number.to_string(),
        1000..1_000_000 => format!("{:.0}k", number as f64 / 1e3),
        _ => format!("{:.3}", number as f64 / 1e6).trim_end_matches('0').trim_end_matches('.').to_string() + "M",
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_stay_within_their_frame() {
        let curve = |name: &str, ups: [f64; 3]| Curve {
            name: name.into(),
            points: [64 << 10, 1 << 20, 16 << 20].into_iter().zip(ups).collect(),
        };
        let text =
            draw("T < U", "bytes", "MB/s", &[curve("a", [9.0, 120.0, 4000.0]), curve("b", [30.0, 30.0, 30.0])], &short);
        assert!(text.contains("T &lt; U") && text.contains(">64K<") && text.contains(">16M<"), "{text}");
        assert_eq!(text.matches("<polyline").count(), 2);
        for circle in text.lines().filter(|line| line.starts_with("<circle")) {
            let number = |name: &str| -> f64 {
                let after = circle.split(&format!("{name}=\"")).nth(1).expect("an attribute");
                after.split('"').next().expect("its end").parse().expect("a number")
            };
            assert!((LEFT..=WIDTH - RIGHT).contains(&number("cx")), "{circle}");
            assert!((TOP..=HEIGHT - BOTTOM).contains(&number("cy")), "{circle}");
        }
    }

    #[test]
    fn one_point_is_a_picture_too() {
        let text = draw("t", "x", "y", &[Curve { name: "a".into(), points: vec![(4096, 1.0)] }], &short);
        assert!(text.contains(">4K<") && !text.contains("NaN"), "{text}");
    }
}
