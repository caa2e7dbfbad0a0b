"""The page's style sheet: light, dark and print from the same variables, no font or image fetched."""

from __future__ import annotations

__all__ = ["STYLE"]

STYLE = """
:root{--paper:#fff;--ink:#16202a;--soft:#566370;--rule:#dde3e8;--wash:#f5f7f9;--chosen:#0b7468;--stock:#a3adb7;
--current:#b98324;--other:#7d97b3;--good:#0b7468;--bad:#b3372b;--warn:#7a4a00;--warnwash:#fff4dc;--warnrule:#e5b454;
color-scheme:light dark}
@media(prefers-color-scheme:dark){:root{--paper:#11161b;--ink:#e4e9ee;--soft:#9aa7b3;--rule:#2a333c;--wash:#182027;
--chosen:#3fbfae;--stock:#66727e;--current:#d9a648;--other:#7f9fc2;--good:#3fbfae;--bad:#f07f72;--warn:#f5cf85;
--warnwash:#2e2410;--warnrule:#7d5f1f}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,
"Noto Sans","Liberation Sans",sans-serif;font-variant-numeric:tabular-nums}
.sim{background:var(--warnwash);color:var(--warn);border-bottom:1px solid var(--warnrule);padding:.7rem 1.25rem;
font-size:.92rem}
.sim p{max-width:56rem;margin:0 auto}.sim strong{letter-spacing:.02em}
header,main,footer{max-width:58.5rem;margin:0 auto;padding:0 1.25rem}
.kicker{margin:2.2rem 0 0;color:var(--soft);font-size:.88rem;overflow-wrap:anywhere}
.kicker b{color:var(--ink);font-weight:650}
h1{font-size:2.1rem;line-height:1.15;letter-spacing:-.02em;margin:.35rem 0 .6rem;font-weight:680}
h1.passed{color:var(--good)}h1.missed{color:var(--bad)}
.summary{font-size:1.12rem;max-width:46rem;margin:0 0 1.5rem;overflow-wrap:anywhere}
.tiles{display:grid;grid-template-columns:repeat(4,1fr);gap:0 1.75rem;margin:0 0 .5rem}
.tile{border-top:2px solid var(--ink);padding:.55rem 0 .4rem;min-width:0}
.tile dt{font-size:.85rem;color:var(--soft)}
.tile dd{margin:0}
.tile .value{font-size:1.65rem;font-weight:640;letter-spacing:-.015em;line-height:1.3}
.tile .value.none{font-size:.95rem;font-weight:500;letter-spacing:0;line-height:1.35;color:var(--soft);padding:.4rem 0}
.tile .detail{font-size:.85rem;color:var(--soft);display:block}
.met{color:var(--good);font-weight:600}.miss{color:var(--bad);font-weight:600}
section{margin:2.6rem 0 0;padding-top:1rem;border-top:1px solid var(--rule)}
h2{font-size:1.3rem;letter-spacing:-.01em;line-height:1.25;margin:0 0 .4rem;font-weight:650}
h3{font-size:1rem;margin:1.6rem 0 .3rem;font-weight:650}
p{margin:.4rem 0 .8rem;max-width:46rem}
.note{color:var(--soft);font-size:.92rem}
ul.advice{max-width:46rem;padding-left:1.3rem;margin:.4rem 0}.advice li{margin:.35rem 0;overflow-wrap:anywhere}
pre{background:var(--wash);border:1px solid var(--rule);border-radius:6px;padding:.85rem 1rem;
white-space:pre-wrap;overflow-wrap:anywhere;font-size:.86rem;line-height:1.6;margin:.6rem 0}
code,pre,.mono{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace}
code,.mono{font-size:.88em;overflow-wrap:anywhere}pre code{font-size:1em}
figure{margin:1rem 0 1.2rem}
figcaption{font-weight:600;font-size:.95rem;margin-bottom:.5rem}
figcaption span{display:block;font-weight:400;color:var(--soft);font-size:.88rem;max-width:46rem}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.1rem 1.1rem;margin:0 0 .5rem;padding:0;font-size:.85rem;
color:var(--soft)}
.legend i{display:inline-block;width:.7rem;height:.7rem;border-radius:2px;margin-right:.4rem;background:var(--c)}
.legend i.round{border-radius:50%}.legend i.turned{background:none;border:1.5px solid var(--ink);transform:rotate(45deg)
scale(.8);border-radius:0}
.scroll{overflow-x:auto;margin:.6rem 0}
table{border-collapse:collapse;width:100%;font-size:.88rem;line-height:1.4}
caption{text-align:left;color:var(--soft);font-size:.85rem;padding-bottom:.35rem}
th,td{text-align:left;padding:.38rem .9rem .38rem 0;border-bottom:1px solid var(--rule);vertical-align:top}
th:last-child,td:last-child{padding-right:0}
thead th{color:var(--soft);font-weight:600;vertical-align:bottom;border-bottom-color:var(--soft)}
tbody th{font-weight:500;min-width:8.5rem}
.n{text-align:right;white-space:nowrap}.none{color:var(--soft)}td.none{white-space:normal;text-align:left}
tr.chosen th,tr.chosen td{font-weight:650}tr.chosen th::before{content:"";display:inline-block;width:.5rem;height:.5rem;
border-radius:50%;background:var(--chosen);margin-right:.45rem;vertical-align:.1em}
.wide{min-width:46rem}.wide th:first-child{min-width:11rem}
table:not(.wide){width:auto;min-width:min(100%,26rem)}.sub{display:block;color:var(--soft);font-weight:400;font-size:.93em}
dl.facts{display:grid;grid-template-columns:minmax(8rem,max-content) 1fr;
gap:.2rem 1.4rem;font-size:.92rem;margin:.5rem 0}
dl.facts dt{color:var(--soft)}dl.facts dd{margin:0;overflow-wrap:anywhere}
footer{color:var(--soft);font-size:.85rem;margin-top:3rem;margin-bottom:3rem;padding-top:1rem}
svg{display:block;overflow:visible;max-width:100%}
svg.lines{margin-left:4.2rem;width:calc(100% - 5rem)}
svg text{fill:var(--ink);font-size:13px;paint-order:stroke;stroke:var(--paper);stroke-width:4px;stroke-linejoin:round}
svg .tick,svg .axis-label{fill:var(--soft);font-size:12px}svg .figure{font-weight:600}
svg .grid{stroke:var(--rule);stroke-width:1}
svg .mark{stroke:var(--ink);stroke-width:1.25;stroke-dasharray:5 3}
svg .mark.cap{stroke:var(--bad)}svg .mark.epoch{stroke:var(--soft);stroke-dasharray:none;stroke-width:1}
svg .mark-label{font-size:12px}svg .mark-label.cap{fill:var(--bad)}svg .mark-label.epoch{fill:var(--soft)}
svg .interval{stroke:var(--ink);stroke-width:1.5}
svg .point{fill:var(--c);stroke:var(--paper);stroke-width:1.5}
svg .dot{fill:var(--c);fill-opacity:.75;stroke:var(--paper);stroke-width:.75}
svg .bar{fill:var(--c)}svg .bar+.dot,svg .bar~.dot{fill:var(--ink);fill-opacity:.65}
svg .diamond{fill:none;stroke:var(--ink);stroke-width:1.5}
svg .cross{fill:none;stroke:var(--bad);stroke-width:2}
svg .line{fill:none;stroke:var(--c);stroke-width:1.75;vector-effect:non-scaling-stroke;stroke-linejoin:round}
svg .line.dashed{stroke-dasharray:5 4}
svg .track{fill:var(--rule)}svg .fill.good{fill:var(--good)}svg .fill.bad{fill:var(--bad)}
svg .tip{stroke:var(--ink);stroke-width:2}
.chosen{--c:var(--chosen)}.stock{--c:var(--stock)}.current{--c:var(--current)}.candidate{--c:var(--other)}
.ceiling{--c:var(--stock)}.loader{--c:var(--other)}.plain{--c:var(--soft)}.good{--c:var(--good)}.bad{--c:var(--bad)}
.fit{--c:var(--soft)}
.thumbs{display:grid;grid-template-columns:repeat(auto-fill,minmax(8.5rem,1fr));gap:1rem .9rem;list-style:none;
margin:.8rem 0;padding:0}.thumbs li{min-width:0;font-size:.82rem;line-height:1.35}
.thumbs img,.thumbs .broken{display:block;width:100%;aspect-ratio:4/3;object-fit:contain;background:var(--wash);
border-radius:4px;margin-bottom:.3rem}.thumbs .broken{padding:.6rem;color:var(--bad);overflow:hidden}
.thumbs b,.thumbs span{display:block;white-space:nowrap;overflow:hidden;text-overflow:ellipsis}
.thumbs b{font-weight:600}.thumbs span{color:var(--soft)}
.pair{display:grid;grid-template-columns:1fr 1fr;gap:0 2rem}.pair>*{min-width:0}
svg .bin{fill:var(--other)}
@media(max-width:46rem){.pair{grid-template-columns:1fr}}
@media(max-width:46rem){body{font-size:15px}.tiles{grid-template-columns:1fr 1fr;gap:.6rem 1.25rem}
h1{font-size:1.7rem}.tile .value{font-size:1.4rem}.kicker{margin-top:1.4rem}
dl.facts{grid-template-columns:1fr;gap:0}dl.facts dd{margin-bottom:.5rem}}
@media print{:root{--paper:#fff;--ink:#000;--soft:#444;--rule:#ccc;--wash:#fff;--chosen:#0b7468;--stock:#999;
--current:#b98324;--other:#5f7f9f;--good:#0b7468;--bad:#b3372b;--warn:#5c3800;--warnwash:#fff;--warnrule:#999}
body{font-size:10.5pt}header,main,footer{max-width:none;padding:0}.sim{padding:.5rem 0}
figure,table,pre,.tiles{break-inside:avoid}h2,h3,figcaption{break-after:avoid}.scroll{overflow:visible}
.wide,.wide th:first-child{min-width:0}svg *{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""
