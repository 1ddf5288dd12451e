"""How the page looks: light or dark as the reader has it, one column on a phone."""

from __future__ import annotations

# Okabe and Ito's colours, told apart by most who do not see all colours; of dark grounds lighter.
_LIGHT = "0072b2 d55e00 009e73 a0527d 7a6a00 3b3b3b 1f7fbf b35900 5a4fcf 8a2b2b"
_DARK = "6cb8e8 f2904a 3fcfa0 e59ac4 e0d24a d0d0d0 8cc8ff ffb066 aba3ff f0a0a0"


def _colours(colours: str) -> str:
    return "".join(f"--c{number}:#{colour};" for number, colour in enumerate(colours.split()))


STYLE = (
    f":root{{color-scheme:light dark;--ground:#fff;--text:#1b1b1b;--soft:#5c5c5c;--rule:#d8d8d8;"
    f"{_colours(_LIGHT)}}}\n"
    "@media (prefers-color-scheme:dark){:root{--ground:#16181a;--text:#ececec;--soft:#a8a8a8;"
    f"--rule:#3c4043;{_colours(_DARK)}}}}}\n"
    + "".join(f".c{number}{{--c:var(--c{number})}}" for number in range(10))
    + """
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--text);font:16px/1.5 system-ui,sans-serif;
overflow-wrap:anywhere}
main{max-width:1240px;margin:0 auto;padding:1rem clamp(.5rem,3vw,1rem)}
h1{font-size:1.5rem;line-height:1.25;margin:.5rem 0}
h2{font-size:1.25rem;margin:2.5rem 0 .5rem;border-top:1px solid var(--rule);padding-top:1rem}
h3{font-size:1.05rem;margin:1.75rem 0 .25rem}
p,ul{max-width:48rem;margin:.5rem 0}
nav ul{max-width:none;padding:0;display:flex;flex-wrap:wrap;gap:.25rem 1.25rem;list-style:none}
a{color:inherit}
.soft,figcaption{color:var(--soft);font-size:.875rem}
.figures{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,340px),1fr));
gap:1.25rem 2rem;align-items:start}
figure{margin:0;min-width:0}
figure svg{display:block;width:100%;max-width:540px;height:auto}
figcaption p{margin:.1rem 0}
figcaption .title{font-weight:600;font-size:.9375rem;color:var(--text)}
table{border-collapse:collapse;width:100%;max-width:48rem;font-size:.8125rem;font-variant-numeric:tabular-nums}
@media (max-width:480px){table{font-size:.75rem}th,td{padding:.2rem .15rem}
th[scope=row]{min-width:4.6rem}}
caption{text-align:left;color:var(--soft);padding:.25rem 0}
th,td{padding:.2rem .35rem;text-align:right;vertical-align:top;
border-bottom:1px solid var(--rule);overflow-wrap:break-word}
th{font-weight:600}
th:first-child,td.words{text-align:left}
th[scope=row]{overflow-wrap:anywhere;min-width:5.6rem}
dl{display:grid;grid-template-columns:minmax(6rem,12rem) minmax(0,1fr);gap:.15rem 1rem;
max-width:60rem;
font-size:.875rem;margin:.25rem 0}
dt{color:var(--soft)}
dd{margin:0;min-width:0}
dt.over,dd.over{grid-column:1/-1}
dt.over{color:var(--text);font-weight:600;margin-top:.5rem}
dd.over{padding-left:.75rem;border-left:1px solid var(--rule)}
dd.over dl{margin:0}
dd ul{margin:0;padding-left:1rem}
summary{cursor:pointer;font-size:.875rem;color:var(--soft)}
ol.key,ul.key{list-style:none;padding:0;margin:.25rem 0;font-size:.8125rem;display:flex;
flex-wrap:wrap;gap:.15rem 1rem}
.key svg{display:inline-block;width:22px;height:14px;vertical-align:-2px;margin-right:.3rem}
.warn{border-left:4px solid var(--c1);padding-left:.75rem}
svg{font-family:system-ui,sans-serif;fill:var(--text)}
svg .name{fill:var(--soft)}
.grid,.tick{stroke:var(--rule);fill:none;stroke-width:.75}
.line{stroke:var(--c);fill:none;stroke-width:1.4;stroke-linejoin:round}
.thick{stroke-width:2.4}
.lead{stroke:var(--soft);fill:none;stroke-width:.6}
.full{fill:var(--c);stroke:var(--ground);stroke-width:.5}
.hollow{fill:var(--ground);stroke:var(--c);stroke-width:1.1}
.ground{fill:var(--c);fill-opacity:.2}
.hatch{stroke:var(--c);stroke-width:1.1;stroke-opacity:.75;fill:none}
.swatch{stroke:var(--text);stroke-width:1}
.border{stroke:var(--text);stroke-width:1;fill:none}
.on{paint-order:stroke;stroke:var(--ground);stroke-width:4;stroke-linejoin:round;font-weight:600}
.bar{fill:var(--c);fill-opacity:.35;stroke:var(--c)}
@media print{details{display:block}h2{break-after:avoid}figure{break-inside:avoid}}
"""
)
