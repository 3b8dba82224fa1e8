// Invitations: the code by which one machine joins, and for how long it holds.

import { byId } from "/ui/dom.js";

/** Let an administrator make an invitation. */
export function startJoin(post) {
  let invitation = null;
  const note = byId("join-note"), shown = byId("invitation");

  byId("invite").addEventListener("click", async () => {
    note.textContent = "Opening the cluster to other machines …";
    try {
      invitation = await post("/ui/invite", {});
      const { address = "", advice = "", code } = invitation, host = address.replace(/:\d+$/, "") || location.hostname;
      shown.firstElementChild.textContent = `baton join ${code}`;
      byId("join-address").textContent = `There, where multicast does not get through: baton join ${code} --address ${host}${address.match(/:\d+$/)?.[0] ?? ""}. ${advice}`;
      shown.hidden = false;
      tell();
    } catch (error) {
      invitation = null;
      shown.hidden = true;
      note.textContent = error.message;
    }
  });

  function tell() {
    if (!invitation) return;
    const left = Math.round((Date.parse(invitation.expires_at) - Date.now()) / 1000);
    if (left <= 0) [invitation, shown.hidden] = [null, true];
    note.textContent = left > 0 ? `Lets one machine in, for ${Math.floor(left / 60)} min ${left % 60} s more.` : "The code has expired: make another.";
  }

  setInterval(tell, 1000);
}
