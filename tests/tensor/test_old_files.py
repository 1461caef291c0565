"""Files that version 0.1 wrote, whose pickles name modules of that version, are still read."""

from __future__ import annotations

import base64
import io
import pickle
import zlib
from typing import Any

import pytest
import torch

import scorch

pytestmark = pytest.mark.cpu("these files are of tensors that were there")

DENSE = torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.0, 0.0], [0.0, 3.0, 0.0]])
# fmt: off
FILES: dict[str, str] = {
    "tensor": (
        'c-r05+iue^90u^5x-'
        'pN9G1y=n$2pwJmbM$aVi#x<iYO3nax+C)VwOM__lw<1L#ni!7REF10PqM%T(vKTy|ze0RN|IJIoQ^xzwMuu10&)QE25+<XwF'
        '$t=3$G*WH0<cgTV-aHa@}yE5cn$ppVZqLLq386Bu?IrtME?nwHTP%{VOIke!&L<d<ZF6)`O^v5iUF)m)u6UDGwYI8~3tQSG2'
        '9(u|X!pgYYpi-!vgS`NXKJ<N<&6l5%ngLehn3wHJe<pd-OA{Nt#6Pl|A!L+}qYg+HX=zSqs|7Y*(R{zKH``)+LOJzCuvj5#w'
        '-!?ScpOedL6il#)WkHJ;JY_j_74c`(eo`Sa8qhpW!yHEMvrpux*l$Rp^dsdk+pz4TP4a{l0wve*P1#FxfeF|0Emef&yO?yXW'
        '>ZaT`;#g?*p57dqwSFwxp@2A+@F<+jmpMqwdSl<)~k+F#h`4|Xu@=@x`6dY72AgPx3C_T)x@LA7(S{3P7e+$6luPSnJ#8Moa'
        'tcB!&!MYRtNL0-od%UNP=WE64HZ{SLy(1{5*{W!TI|h76cYOT<GFrJ(;o-'
        'l1%&aCx?9fX=SChc8uH{OFj%sa`O*zU2!iZ()f~x%N<<ta8(+c9b8k!*AEj#xh!zQ!_6*k3EcK@XXLr?zj<!SKXZ&|ZNqVDY'
        'b*aIItm{X?HxRm?@f7c;;tgS=fUnk`aKwsK2)TS2BeP#${wC{vEpI%unp%EDjurkUppXp(E'
    ),
    "transposed": (
        'c-qyIO>fjN5QdXD>5APJs&ax;kKq!P>_@vNstQ#?RtqebTq-'
        'L~OcQY9wd1T*q?PuvKv8aWZ~OrM8b1Mv1Cx)U7E#2tmNQY_yqfVmBQKmwW*hY?ALbF4QQ|3@<y?AsIHR#Hd#B-'
        'hN*YaH=)@>jYb94)h9~s8G!2!aG6Tt-YqwlsbVgaOODl%pa2ZpnkF<+TY|sKDj6Ukaa#htuNukopyFny9E>ae^CCSXM@|A0i'
        '?W$_IP8bhk@>cRwa(t#}4z9g>reQ3sFJ1QY>;8|;ci&z;@)p*?cLZ@R3^!PZHm8y+9&tuyROTtqgb9XV4gRoHDMks+;xx>J^'
        '*QK*sLrO)Yx;ra0?mc(1`ddM!le=pwgLoSX{N*qwu6cz<JpPmV7n-'
        'wrW<rBb8}>2M0E?@7nyp~NL^tD_rWplkDm^P{;0n_@cn^kvPRQFAZ#BhVZVl4N5c4<*9^UOeD$*0r%IrgdZMv`?WM-'
        '%QlFPS=$g?;LDK-b_p+J?ji0BH0(MU(T7e%Xl00yejXmdXquk!<Zw*H`P@>yVwq8Jq{y=G7!-'
        '!gp$>ZOss@Tx#+yz?uaAR)aH5~i?aJ2Pbyso@AcrBhm*oD3O4_*^}KG&b%<^2NZTTO='
    ),
    "blocks": (
        'c-'
        'qyIO>5LZ7{~LrDeksXToAm7$9M@fTifo*Qlub*tJX^{C1jJaiJfM4Ub0YOVJ};&%+2wpcfXn+LGa*{m&&fVAD{zIp5&iD&ph'
        '*+nR(~ycgLuQ>WhT(B=aRM1m(Vnr#RKBcM+fCsL}Knof&GgR)nNHKEun>B$g8M0wiyyJ>?QS#YAZ3q#}h%9m-'
        'S8^{Mudfy^qfa>s-'
        'w=b{o@9aq^zHpV5gk$t7Tk=m4XV^Jyds@}bb<8hgjv~4Sz2GyKutFhg5rnVzO<1~85=|wcYlvsf4=#FU^bL(@L{Qh?Q>(Tok'
        'uOIkx>*Y@yo-'
        '<~6;WnU{a4Km+Ni@Y=<g{QW7{V?1Lvkqzj&PCYalx$XunVHRoB)sf0~XAlF~<u#Ac~A~$vVgiZTQLy$z0@w6>CC^Gq!=8vV='
        'LkaHBFeEi)sjm(YDt$hVEuWoCF69K*rz$?nr&Z~tHr?Ch|nYBDLAjhvBW&Ksz8%8dVc&Dd|ZxE^L37KC2t6Ajdzg+}H=e^Nb'
        'IHNlC5MFZ&Gt7^w^`aDl0uzP%>CHO}p37eAjz3l#xdAn&22m6EIV1=f&j%MoxnwGITZYWwU#q8k{sVX<D`nQ4AF<hCoXKyzc'
        '?5)yr*Pgw`3$)z7oaWEkm%}z4F4J@WrFR8!J<}f{`F{Xo+*$h'
    ),
    "format": (
        'c-m`Vo!ZX;0X?F{$@xXe8G32?MY)M3#ZY=m51Si=F?ot+<CNMd8a-?|sb#4-'
        '#Z!7D(R3u|=N1&D78j?cOzGirMsR>SgQjF~woU0_%`ZwxEt=xZ;LQl+u_fi?CubK=(d=PMOU%v8shrZol9F6pG^I324*)4>I'
        '-~'
    ),
    "rows": (
        'c-qyIO>5LZ7{~LryO?dIC<VRs7%!n_U)nuciWDSRb$iLBglsZ4(b-'
        'JqB`XyI>tWSOZjLw4;#cz{2p)X$QfZ47uN{&n<Ujv;o;<&qEIVJm8A?6MO&$^!#<oByC(P!-'
        'Ji~~~(mcun#?h3#;qtS5@J<%8>@_Bsy?b@l0!6ay&x6;<Z!}mGcgwX};exQ>1YMM}KnTQAkgP&lWf!9b!jM>tAan?e5R=E!a'
        'uruaxvRVSdwE!{iMptti=^`2@fn)s369#5{=%v9mFtb|ylT1OV-iIEOGf7Y>{Ottq5WH`qAayfCjRyH;OEw>@6YesOYP|o9b'
        '!Qh%i91r86$#(1p5obctTRDg27vd8Jq}#k&n_S2~w(k^h^-'
        'NX$HL}ZxN?@K@H36fXHLQ1nsz*r^8#43fgrIucD7hdO~}yk>^m;@_LoI`DChubqnT`R2(&uNmcJQI3|P1!{Nvo4|ax*Go(${'
        'Fw3d#8i#@!FCf=3RsQBx1H0YydT8xkC6FsQmB89qNmpITv$79eV-yN#8bJ4-'
        'Rr`UW$4Mxv!!VTs{IDbOrWN1Y@7!#ZJG+DJ(fATd{W_Gb7f|X~P^uR&>Mh22>kq0bHne&-fz|>1G1u@KO&n)5-'
        'u^FM=iW=amX9Fp!L|1fUQ>Bi$Pe&XNj|fG18s_CZ~'
    ),
    "torch.save": (
        'c-'
        'o~_y>Ht_6hDcwEHkbwyG<P1jnk%XL$|RkQeSq1#)eQ32w1o(jRI=XKxL?_MTD08$diI3Fp$8o0{;Wu+A({xWXX~#vzJWXf()'
        'IqWGFi2j+ABcT*;_?(BY26{XXvQy+@TbA%;*QfsVBlnm~qQ)~z;PtQo{eZ{4xgQWE_fY7e8^fTT)<0@fj7x@MC?(gZi$rjvG'
        '!Hm-@A#vNSs--r<Hzr-'
        'a?$JoFk2>sV=8H8Y`Awo>rh9RjEr@A(7W7~yzB}yM^E(}+O=%ne?umg!(Fd}J4i{O?fXhH|XHIsPU)fTaASFAetcFVGBU4zx'
        'OBEmUIsti+#t|1upA>z#jSwHmnfw$!hBr5_P&8-'
        '%UX)yw+AE;Pt7sj>7E==s1X4AH@NvvkW6~AYWaP3>mBqDq`ufs<K&g*cY1CwiYs#zbc`>ZlttdD5|fhoo&?7}o-o7t-'
        '~(8mNW=`h=Y%LG2r;Zq;kb*S1+<H+L`k4=Hke73nR+vkk!3!m*O0ZE7X4t%M@S9{xV?J+FqkoHcnMo$F8V%M5amW2!@8zCTj'
        'Wb8y0Iz&2<^$BwX@;Ve+>9RJQcpjPfcZ%K$>*c<IHi@qE0xkVp)7dmgwT&H@9-'
        '3O3<>HNRGShkX_F#v(W4*u5G%6nHbnmum*w#j46E}!j%AO$gpRJH%23GFE-'
        'z@r~0}YI$m7amy_XzevR4rXUjqYKyEkbO}JnVk+dWxk(e4vLUx)I9i#f)0|`V0n8ch{^7p7L<wr|ncZ<yDZuPI6%<vRcZZ)9'
        'OdM+IOFP_h^*PM^DgR3TrEBDThwC|A#A-aFza6nf_nDC!d}|KYK=f<a^-'
        'Ts`rlhdimnb!W^B?4fHjJF86%(QgCLFv8>40_y64Z@#OfQMaoeEdfRrfW6=z}Z?FnkwQ6c9{Xb7Z&J>GF1*NDg7nhfp@;SMn'
        '<YoFMza-1~LM|&W=ao!R@yf&>PZ#e=)Q9A`j4-'
        'o3pTSa<I_8}J4)W+=0h$aUttjeO+<1~;5t$B=><3AXRW6<<SO~^LJi3667a$%U%-'
        '&=O{z^bx?clM&><eRmjd56+#|ASej6LA73Xcs&cNqK25Qok3*kJ6Ag|P1e*gkg_45``hS;x@{!Cuzl@oR^vAuRNeA~)_t{qd'
        'i;KT;g~cY+>__|Jan8;biF(Od7YeGgleD$D'
    ),
    "layer": (
        'c-'
        'qxfzi$&U6u#UgX=z#rR3K<k#h4C6ZA#k|B!mz`LRZR<E?JP}+&R6YS37t1r7BWU843lAK&sgg3k!@$Y@iNI@F%b`0TL4v5(D'
        'pYNt>h%V(kq+`@Qcy+n@bDuce-'
        '64`}sIX1T=z%gIxk_gqSFpk)7i6$hNm#=}iDdQYvYoa_|=cBxAj)P~F;fZ!z}NWkmPbPanU;Sen9=};(K4~9ojK+2)(**gJ{'
        '(K*oK5QK6TpjrVOIXMu=bNJx}qGT3%4BMy@uq9Mp5irH3x;U87v^D)vpZDj*<=>}nzrKDVzouXPZa};0Yq?Suc2*6TU>5UG4'
        'c6!~>L&nD8UT;y3gHn%sO@6v>l>v$Fp8BbLEODVxNofb$y_M~M((gc_$gB_88C9G@Y80pl#FsPy5RSi$uNXDbETdL9530|to'
        'j!EF2lmbd~EFV6QzTInVFawKQmdFEEZ=brl<TkuT>3w!%WW!KY0VP-SV})unC+`$7iN}d-'
        'de~;O5Kocg<g0pC5nOdi&1WntwQQUahN}%GAvCx-'
        't{%>Y>cQ{yky|*gl*^=2~ErfY_H@OGL+dQwhLtILD#)0D3Z6b}?5@#u>;t*^9<LCwZzkIXyK|Xd_wgLUI!eB<l^5FD#z>a0m'
        'a`CRJ~cTBoa>xKQ?@a#*Rv#UPWMU{A#)>idDjS%7rmaBOmXY`UGpL^lo_Sl}?x;P7kp)0>}XKMpiF939<ZkIP|18Aa7-'
        '&m1&BG$}-'
        '!2=!FuoYT+bASz>PaTy1o9|1uQV~cP>qa5<kj;qyt47nUtLeFb=t2ucPRameKKh$nT%dT)x6t~bsoa{hgZyB#}WML>RyMZ~f'
        'jp<zG$ZpRba~wuoU_p=#rP&sKwAIm>dnne%e;|f;BN%U=p%*PNJM>8X>h`lxpbEhv48UOOGUL*gu_1e^Sb&C8B?lW1M=alYj'
        '%&b%>|er*1T{e*==I0JBQ+Ae2D%MRibXP{ZmAqpRf2@3ZW{O1TwE`y{ZKDgXgA3@Q<yFk$J)xp=vFQbER>6(?R-'
        '%`()p(B7@e}SP1WK3O;vGfyfFTMPhb<<@&ra-q%wL(zw-%fp)G1<4~oPYZtA1nrZ~wI*a(HFu$=!3w~*x='
    ),
}
# fmt: on


def content(name: str) -> bytes:
    return zlib.decompress(base64.b85decode(FILES[name]))


@pytest.mark.parametrize("name", ["tensor", "transposed", "blocks"])
def test_pickled_tensors(name: str) -> None:
    found = pickle.loads(content(name))
    assert isinstance(found, scorch.SparseTensor) and found.requires_grad == (name == "blocks")
    torch.testing.assert_close(found.detach().to_dense(), DENSE.T if name == "transposed" else DENSE)


@pytest.mark.parametrize("weights_only", [True, False])
def test_files_of_torch(weights_only: bool) -> None:
    found: dict[str, Any] = torch.load(io.BytesIO(content("torch.save")), weights_only=weights_only)
    torch.testing.assert_close(found["S"].to_dense(), DENSE)
    torch.testing.assert_close(found["dense"], DENSE)


def test_what_else_was_pickled() -> None:
    assert pickle.loads(content("format")) == scorch.Format("dcsr")
    rows = pickle.loads(content("rows"))
    assert isinstance(rows, scorch.utils.data.SparseDataset) and len(rows) == 3
    layer = pickle.loads(content("layer"))
    assert isinstance(layer, scorch.nn.SparseLinear)
    assert layer(torch.ones(1, 3)).shape == (1, 2)


def test_what_is_saved_now_is_read_again() -> None:
    S = scorch.from_torch(DENSE, format="csr")
    again = pickle.loads(pickle.dumps(S))
    torch.testing.assert_close(again.to_dense(), DENSE)
    file = io.BytesIO()
    torch.save(S, file)
    file.seek(0)
    torch.testing.assert_close(torch.load(file, weights_only=True).to_dense(), DENSE)
