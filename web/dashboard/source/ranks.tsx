/** The ranks of a run: the processes that train. */
import { Head, useFew } from "./panel";
import { moment, number } from "./words";

export interface Rank {
  rank: number;
  host: string;
  pid: number;
  device: string;
  global_step: number;
  time: number;
  outcome: string | null;
}

/** The processes that train: one that lags behind the others shows. */
export function RanksShown({ ranks }: { ranks: Rank[] }) {
  const [shown, more] = useFew(ranks, 16);
  if (ranks.length < 2) return <p class="faint">One process trains.</p>;
  return (
    <>
      <table aria-label="Ranks">
        <Head names={["Rank", "Step", "Told", "Process"]} />
        <tbody>
          {shown.map((rank) => (
            <tr key={rank.rank}>
              <th scope="row">{rank.rank}</th>
              <td class="number">{number(rank.global_step)}</td>
              <td>{rank.outcome ?? moment(rank.time)}</td>
              <td class="faint">
                {rank.pid} on {rank.host}, {rank.device}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {more}
    </>
  );
}
